"""Where the values of a program lie: values that are never needed at the same time share memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ktitan.native.program import Buffer, Operation
from ktitan.program.draft import Call, Draft

__all__ = ["Placed", "Slot", "place"]

# Operations whose result may lie where one of these inputs was.
_IN_PLACE = {"add": (0, 1), "scale": (0,), "activate": (0,), "gate": (0,)}

Item = Operation | Call


@dataclass
class Slot:
    """Memory for `width` numbers of a kind a row."""

    width: int
    is_index: bool
    by_sequence: bool

    def fits(self, buffer: Buffer) -> bool:
        """Whether values of this kind may lie here."""
        return (self.is_index, self.by_sequence) == (buffer.is_index, buffer.by_sequence)


@dataclass(frozen=True)
class Placed:
    """A draft with places.

    Attributes:
        items: what is left of the draft: copies of values that end there are gone.
        slots: the memory.
        slot_of: of each value; -1: it has none (the kept one, and values that are gone).
    """

    items: tuple[Item, ...]
    slots: tuple[Slot, ...]
    slot_of: tuple[int, ...]


def place(draft: Draft, kept: int) -> Placed:
    """Give every value of a draft a slot, but for the value `kept`, which is the result."""
    items = _without_copies(draft, kept)
    last = _last_uses(items)
    last[kept] = len(items)
    slots: list[Slot] = []
    free: list[int] = []
    slot_of = [-1] * len(draft.values)
    for at, item in enumerate(items):
        ending = [one for one in dict.fromkeys(item.inputs) if last[one] == at and slot_of[one] >= 0]
        for out in item.outputs:
            if slot_of[out] >= 0 or out == kept:
                continue
            taken = _inherited(item, ending, draft.values, out)
            if taken is not None:
                ending.remove(taken)
                slot_of[out] = slot_of[taken]
            else:
                slot_of[out] = _found(draft.values[out], slots, free)
        free += [slot_of[one] for one in ending]
        free += [slot_of[out] for out in item.outputs if last.get(out, at) == at and out not in ending and out != kept]
    return Placed(tuple(items), tuple(slots), tuple(slot_of))


def _last_uses(items: list[Item]) -> dict[int, int]:
    """The last item that reads or writes each value."""
    return {value: at for at, item in enumerate(items) for value in (*item.inputs, *item.outputs)}


def _without_copies(draft: Draft, kept: int) -> list[Item]:
    """The items without copies of whole values that nobody needs afterwards."""
    last = _last_uses(draft.items)
    stands_for: dict[int, int] = {}
    items: list[Item] = []
    for at, item in enumerate(draft.items):
        item = _renamed(item, stands_for)
        if isinstance(item, Operation) and _is_whole_copy(item, draft) and last[draft.items[at].inputs[0]] == at:
            (source,), (target,) = item.inputs, item.outputs
            if source != kept and target != kept:
                stands_for[target] = source
                continue
        items.append(item)
    return items


def _is_whole_copy(item: Operation, draft: Draft) -> bool:
    if item.kind != "copy":
        return False
    width = item.numbers[2] * item.numbers[3]
    return all(draft.values[one].width == width for one in (*item.inputs, *item.outputs))


def _renamed(item: Item, names: dict[int, int]) -> Item:
    inputs = tuple(names.get(one, one) for one in item.inputs)
    if isinstance(item, Call):
        return replace(item, inputs=inputs)
    return replace(item, inputs=inputs, outputs=tuple(names.get(one, one) for one in item.outputs))


def _inherited(item: Item, ending: list[int], values: list[Buffer], out: int) -> int | None:
    """The input whose memory the result takes over."""
    places = _IN_PLACE.get(item.kind, ()) if isinstance(item, Operation) else ()
    for at in places:
        if at < len(item.inputs) and item.inputs[at] in ending and values[item.inputs[at]] == values[out]:
            return item.inputs[at]
    return None


def _found(buffer: Buffer, slots: list[Slot], free: list[int]) -> int:
    """A free slot, the narrowest that is wide enough, else the widest, which grows; else a new one."""
    fitting = [number for number in free if slots[number].fits(buffer)]
    if not fitting:
        slots.append(Slot(buffer.width, buffer.is_index, buffer.by_sequence))
        return len(slots) - 1
    wide = [number for number in fitting if slots[number].width >= buffer.width]
    chosen = min(wide, key=lambda n: slots[n].width) if wide else max(fitting, key=lambda n: slots[n].width)
    slots[chosen].width = max(slots[chosen].width, buffer.width)
    free.remove(chosen)
    return chosen
