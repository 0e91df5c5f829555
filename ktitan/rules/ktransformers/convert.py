"""A whole KTransformers file as rules of version 1, with what they mean here in another way.

What differs between the two, and what is done about it:

- A name is searched in a path there and matches the whole path here: `ktitan.rules.ktransformers.names`.
- A module without a rule is on the default device there, on that of the module around it here: a rule at the end gives
  the default device where that is not the same.
- A rule without a match is silent there and a fault here: every rule is optional.
- Operators for prompts are loaded by the layer-wise prefill of a model operator only (`load_layer_to` in
  `operators/models.py`), which the threshold 0 turns off; they are left out unless it is on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.ktransformers.devices import DEFAULT_DEVICE, whole_device
from ktitan.rules.ktransformers.entry import Entry, read_entry
from ktitan.rules.ktransformers.reading import is_none
from ktitan.rules.ktransformers.remarks import Remarks
from ktitan.rules.ktransformers.translate import Translator
from ktitan.rules.match import Match
from ktitan.rules.nodes import ListNode, Location, ScalarNode, describe
from ktitan.rules.ruleset import KEEP, Note, Replace, Rule

__all__ = ["convert"]

_THRESHOLD = "per_layer_prefill_intput_threshold"  # spelled so
_WITH_CHILDREN = (KEEP, "attention.torch")


def convert(node: ListNode, log: FaultLog, keep_prefill: bool = False) -> tuple[tuple[Rule, ...], tuple[Note, ...]]:
    """The rules of a file, and remarks on what they mean here; what is wrong with it goes to `log`.

    Args:
        node: the list at the top of the file.
        log: takes faults.
        keep_prefill: take operators for prompts over even where KTransformers would not use them.
    """
    remarks = Remarks()
    file = Location(node.location.file)
    if not node.items:
        log.add(node.location, "the list of rules is empty", "begin each rule with `- match:`")
    remarks.add("as in KTransformers, a rule that matches no module is no fault (optional: true)", file)
    read = [entry for entry in (read_entry(item, log, remarks) for item in node.items) if entry is not None]
    on, why_not = _layerwise_prefill(read, log)
    translator = Translator(on or keep_prefill, why_not, log, remarks)
    rules = [rule for entry in read for rule in translator.rules(entry)]
    _remark_devices(rules, read, file, remarks)
    if _needs_default(rules):
        message = (
            f"as in KTransformers, modules without a rule compute on {DEFAULT_DEVICE}, by a rule at the end; "
            "placement would be inherited otherwise"
        )
        remarks.add(message, file)
        everything = Match(re.compile(".*"))
        rules.append(Rule(everything, Replace(KEEP, {}, {"device": DEFAULT_DEVICE}), optional=True, location=file))
    return tuple(rules), remarks.notes()


def _layerwise_prefill(entries: Sequence[Entry], log: FaultLog) -> tuple[bool, str]:
    """Whether a model operator has its layer-wise prefill on, and why not."""
    why_not = "KTransformers runs it in layer-wise prefill only, which no rule turns on"
    for entry in (entry for entry in entries if entry.target.moves_layers):
        node = entry.kwarg(_THRESHOLD)
        if node is None:
            return True, ""  # the operators' own default is 30000 tokens
        if is_none(node) or (isinstance(node, ScalarNode) and node.value == 0):
            place = entry.place(_THRESHOLD)
            where = f"line {place.line}" if place.line else str(place)
            why_not = f"KTransformers runs it in layer-wise prefill only, which {where} turns off"
        elif isinstance(node, ScalarNode) and isinstance(node.value, int) and node.value > 0:
            return True, ""
        else:
            log.add(node.location, f"{_THRESHOLD} must be a number of tokens, found {describe(node)}", "0 turns it off")
    return False, why_not


def _remark_devices(rules: Sequence[Rule], entries: Sequence[Entry], file: Location, remarks: Remarks) -> None:
    """Without a `transfer_map`, layers stay on the default device, whatever is below them."""
    devices = {whole_device(rule.replace.placement.get("device", "cpu")) for rule in rules} - {"cpu"}
    if len(devices) > 1 and not any("transfer_map" in entry.kwargs for entry in entries):
        message = (
            "several GPUs but no transfer_map: hidden states come back to the default device after every module; "
            r"a rule such as {match: {name: 'model\.layers\.\d+', layers: 30-}, replace: {class: keep, kwargs: "
            "{device: cuda:1}}} moves whole layers"
        )
        remarks.add(message, file)


def _needs_default(rules: Sequence[Rule]) -> bool:
    """Whether modules below a placed one would follow it to a device that is not the default one.

    A file that names no GPU is for a machine whose default device is the CPU.
    """
    placed = [(rule, rule.replace.placement["device"]) for rule in rules if "device" in rule.replace.placement]
    if all(device == "cpu" for _, device in placed):
        return False
    return any(
        rule.replace.operator in _WITH_CHILDREN and whole_device(device) != DEFAULT_DEVICE for rule, device in placed
    )
