"""One entry of a KTransformers file as rules of version 1."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.ktransformers.classes import stock_class
from ktitan.rules.ktransformers.devices import layer_devices, whole_device
from ktitan.rules.ktransformers.entry import Entry
from ktitan.rules.ktransformers.kwargs import remark_kwargs
from ktitan.rules.ktransformers.names import Name, whole_path
from ktitan.rules.ktransformers.phases import Phase, phase_of
from ktitan.rules.ktransformers.reading import boolean
from ktitan.rules.ktransformers.remarks import Remarks
from ktitan.rules.match import Match
from ktitan.rules.regex import compile_regex
from ktitan.rules.ruleset import KEEP, Replace, Rule

__all__ = ["Translator"]

_LAYER = re.compile(r"model\.layers\.[0-9]+")
_MODULE_LIST = "torch.nn.ModuleList"


@dataclass(frozen=True)
class Translator:
    """Translates the entries of one file.

    Attributes:
        prefill: operators for prompts are taken over.
        why_not: why they are not, for the remark.
        log: takes faults.
        remarks: takes what differs.
    """

    prefill: bool
    why_not: str
    log: FaultLog
    remarks: Remarks

    def rules(self, entry: Entry) -> list[Rule]:
        """The rules that do what `entry` says; none when it is faulty."""
        before = self.log.count
        remark_kwargs(entry, self.remarks)
        generate = phase_of(entry, "generate", self.log, self.remarks)
        prefill = phase_of(entry, "prefill", self.log, self.remarks)
        main = generate or prefill
        if main is None:
            if self.log.count == before:
                message = "generate_op and prefill_op are both null"
                self.log.add(entry.place("generate_op"), message, "name one, or write `class: default`")
            return []
        self._remark_operator(entry, main)
        main = dataclasses.replace(main, kwargs=self._kwargs(entry))
        replace = main.replace(entry)
        other = self._prefill(entry, main, prefill)
        match = self._match(entry)
        found = [Rule(match, replace, other, None, True, entry.recursive, entry.location), *self._layers(entry)]
        return found if entry.sound and self.log.count == before else []

    def _match(self, entry: Entry) -> Match:
        name = Name("") if entry.name is None else whole_path(self._current_name(entry, entry.name))
        cls = entry.cls
        if cls == _MODULE_LIST and entry.name is not None and entry.target.operators != (KEEP,):
            message = f"class {_MODULE_LIST} is left out: the experts of a layer are one module in transformers 5"
            self.remarks.add(message, entry.places["class"])
            cls = None
        if cls is not None:
            stock = stock_class(cls)
            if stock.rpartition(".")[2] != cls.rpartition(".")[2]:
                self.remarks.add(f"class {cls} is {stock} in transformers 5", entry.places["class"])
            cls = stock
        if not name.pattern:
            return Match(None, cls)
        return Match(compile_regex(name.pattern, entry.places["name"], self.log), cls, name.layers)

    def _current_name(self, entry: Entry, pattern: str) -> str:
        current = pattern.replace("block_sparse_moe", "mlp")
        if current != pattern:
            self.remarks.add("block_sparse_moe is called mlp in transformers 5", entry.places["name"])
        return current

    def _remark_operator(self, entry: Entry, main: Phase) -> None:
        """What the operator does that ours does not."""
        if entry.target.note:
            name = entry.operator.rpartition(".")[2]
            self.remarks.add(entry.target.note.format(name), entry.places["replace"])
        if main.note:
            self.remarks.add(main.note, entry.place("generate_op"))

    def _kwargs(self, entry: Entry) -> dict[str, bool]:
        """`absorb_for_prefill: True` is absorb always; False is what attention.torch does by itself."""
        node = entry.kwarg("absorb_for_prefill")
        return {"absorb": True} if node is not None and boolean(node, "absorb_for_prefill", self.log) else {}

    def _prefill(self, entry: Entry, main: Phase, prefill: Phase | None) -> Replace | None:
        """What runs on prompts where it is not what decodes."""
        if prefill is None:
            return None
        moved = whole_device(prefill.device) != whole_device(main.device)
        if not (moved or prefill.operators != main.operators) or (prefill.device is None and not prefill.op):
            return None
        place = entry.place("prefill_op" if "prefill_op" in entry.kwargs else "prefill_device")
        if not prefill.op:
            message = "prefill_device is left out: only linear layers and experts have an operator for prompts"
            self.remarks.add(message, place)
        elif not self.prefill:
            message = f"prefill_op {prefill.op} and its device are left out: {self.why_not}; prompts run like decoding"
            self.remarks.add(message, place)
        else:
            message = (
                "KTransformers loads what reads prompts one layer at a time; here its weights stay loaded in all layers"
            )
            self.remarks.add(message, place)
            if prefill.note:
                self.remarks.add(prefill.note, place)
            return prefill.replace(entry)
        return None

    def _layers(self, entry: Entry) -> list[Rule]:
        """The layers that `transfer_map` moves."""
        node = entry.kwarg("transfer_map")
        if node is None or not entry.target.moves_layers:
            return []
        lines = {"device": entry.place("transfer_map").line}
        return [
            Rule(
                Match(_LAYER, None, layers),
                Replace(KEEP, {}, {"device": device}, entry.places["replace"], lines),
                optional=True,
                location=entry.place("transfer_map"),
            )
            for layers, device in layer_devices(node, self.log, self.remarks)
        ]
