"""Values share memory only while nobody needs both."""

import random

import pytest

from ktitan.native.program import Buffer, Operation
from ktitan.program.draft import Draft
from ktitan.program.memory import place

from support.operator_rig import fresh_seed

IN_PLACE = {"add", "scale", "activate", "gate"}


def random_draft(rng, operations=60):
    """A draft that makes values of earlier ones."""
    draft, made = Draft(), []
    for _ in range(3):
        made.append(draft.value(Buffer(rng.choice([4, 8, 8, 12]))))
        draft.items.append(Operation("rows", (), (made[-1],)))
    for _ in range(operations):
        kind = rng.choice(["linear", "add", "scale", "norm", "copy", "rotate", "joined", "route"])
        source = rng.choice(made[-8:])
        width = draft.values[source].width
        if kind == "rotate":
            draft.items.append(Operation("rotate", (source,), (source,)))
            continue
        if kind == "route":
            index, weights = draft.value(Buffer(2, is_index=True)), draft.value(Buffer(2))
            draft.items.append(Operation("route", (source,), (index, weights)))
            continue
        if kind == "joined":
            other = rng.choice(made[-8:])
            out = draft.value(Buffer(width + draft.values[other].width))
            draft.items.append(Operation("copy", (source,), (out,), numbers=(0, 0, width, 1)))
            draft.items.append(Operation("copy", (other,), (out,), numbers=(0, width, draft.values[other].width, 1)))
        else:
            out = draft.value(Buffer(width if kind != "linear" else rng.choice([4, 8, 12])))
            inputs = (source,)
            if kind == "add":
                same = [one for one in made if draft.values[one].width == width]
                inputs = (source, rng.choice(same))
            numbers = (0, 0, width, 1) if kind == "copy" else ()
            draft.items.append(Operation(kind, inputs, (out,), numbers=numbers))
        made.append(out)
    return draft, made[-1]


def meaning(items, values):
    """What each value is at the end of each item, as nested tuples; by value."""
    state = {}
    for item in items:
        inputs = tuple(state[one] for one in item.inputs)
        for at, out in enumerate(item.outputs):
            width = values[out].width
            if item.kind == "copy" and item.numbers == (0, 0, width, 1) and values[item.inputs[0]].width == width:
                state[out] = inputs[0]
            elif item.kind == "copy":
                state[out] = (*(state.get(out) or ()), (item.numbers, inputs))
            else:
                state[out] = (item.kind, at, inputs)
    return state


@pytest.mark.parametrize("run", range(40))
def test_no_value_is_overwritten_before_its_last_use(run):
    draft, kept = random_draft(random.Random(fresh_seed() + run))
    placed = place(draft, kept)
    wanted = meaning(draft.items, draft.values)[kept]
    memory = {}
    for item in placed.items:
        lives = [kept if one == kept else (placed.slot_of[one],) for one in item.inputs]
        for one, where in zip(item.inputs, lives, strict=True):
            assert memory[where][0] == one, "something else lies there"
        inputs = tuple(memory[where][1] for where in lives)
        places = [kept if out == kept else (placed.slot_of[out],) for out in item.outputs]
        shared = set(lives) & set(places)
        assert not shared or item.kind in IN_PLACE or item.kind == "rotate"
        for at, (out, where) in enumerate(zip(item.outputs, places, strict=True)):
            if where != kept:
                slot = placed.slots[placed.slot_of[out]]
                assert slot.fits(draft.values[out]) and slot.width >= draft.values[out].width
            width = draft.values[out].width
            if item.kind == "copy" and item.numbers == (0, 0, width, 1) and draft.values[item.inputs[0]].width == width:
                value = inputs[0]
            elif item.kind == "copy":
                before = memory.get(where, (None, ()))
                value = (*(before[1] if before[0] == out else ()), (item.numbers, inputs))
            else:
                value = (item.kind, at, inputs)
            memory[where] = (out, value)
    assert memory[kept][1] == wanted
    assert len(placed.slots) < len(draft.values) / 2
