"""Kwargs that have no counterpart here: what becomes of each."""

from __future__ import annotations

from ktitan.rules.ktransformers.entry import Entry
from ktitan.rules.ktransformers.remarks import Remarks
from ktitan.rules.nodes import ScalarNode

__all__ = ["remark_kwargs"]

# Those that other modules of this package read.
_READ = frozenset(
    {"generate_device", "prefill_device", "generate_op", "prefill_op"}
    | {"transfer_map", "absorb_for_prefill", "per_layer_prefill_intput_threshold"}
)
_LEFT_OUT = {
    "out_device": "out_device is left out: outputs go back to the device of the module around",
    "chunck_size": "chunck_size is left out: attention takes a chunk of the prompt as it comes",
    "device": "device is left out: KTransformers' operators do not read it",
    **dict.fromkeys(
        ("num_bits", "group_size", "act_order", "is_k_full"),
        "Marlin's num_bits, group_size, act_order and is_k_full are left out: nothing is requantized",
    ),
    **dict.fromkeys(
        ("block_size", "stride", "group_max_len"),
        "block_size, stride and group_max_len are left out: they tune kernels of KTransformers",
    ),
    **dict.fromkeys(("dump_enable", "dump_dir"), "dump_enable and dump_dir are left out: nothing is dumped"),
}


def remark_kwargs(entry: Entry, remarks: Remarks) -> None:
    """Note every kwarg of a rule that is left out, or that is done in another way."""
    for name, value in entry.kwargs.items():
        if name == "backend":
            backend = value.value.text if isinstance(value.value, ScalarNode) else ""
            if backend != "llamafile":
                message = f"backend {backend!r} has no counterpart: experts.cpu multiplies weights as they are stored"
                remarks.add(message, value.key_location)
        elif name not in _READ:
            unknown = f"kwarg {name!r} is left out: no operator of KTransformers is known to read it"
            remarks.add(_LEFT_OUT.get(name, unknown), value.key_location)
