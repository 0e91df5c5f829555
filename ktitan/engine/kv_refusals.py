"""What every KV pool refuses, in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ktitan.context import KVLayerSpec
from ktitan.errors import BudgetError, UnsupportedError

__all__ = [
    "check_states",
    "cropped_below_zero",
    "named_twice",
    "no_room",
    "undeclared",
    "unequal_lengths",
    "unknown_sequence",
]


def check_states(
    layer: int, tokens: int, keys: torch.Tensor, values: torch.Tensor, is_right: bool, spec: KVLayerSpec | None
) -> None:
    """Whether keys [T, Hk, Dk] and values [T, Hv, Dv] can be appended.

    Args:
        layer: where to.
        tokens: T.
        keys, values: the tensors.
        is_right: their widths, dtype and device are those of the layer.
        spec: what the layer stores; None: it is new.

    Raises:
        UnsupportedError: they cannot.
    """
    if keys.ndim != 3 or values.ndim != 3 or keys.shape[0] != tokens or values.shape[0] != tokens:
        raise UnsupportedError(
            f"keys {list(keys.shape)} and values {list(values.shape)} are not [T, heads, dim] with T = {tokens}",
            f"layer {layer}",
            "pack the tokens of the step in one row",
        )
    if keys.requires_grad or values.requires_grad:
        raise UnsupportedError(
            "keys or values require gradients, which the pool cannot carry",
            f"layer {layer}",
            "run the model under torch.no_grad() or torch.inference_mode()",
        )
    if not is_right:
        raise UnsupportedError(
            f"keys {_describe(keys)} and values {_describe(values)} do not fit "
            + ("each other" if spec is None else f"the layer's {spec}"),
            f"layer {layer}",
            "give keys and values one dtype and device, and each model a pool of its own",
        )


def unknown_sequence(sequence: int) -> UnsupportedError:
    """It was never made, or freed."""
    return UnsupportedError(
        f"the pool has no sequence {sequence}", remedy="it was freed, or it belongs to another pool"
    )


def named_twice(sequences: Sequence[int]) -> UnsupportedError:
    """One call cannot append to a sequence in two pieces."""
    return UnsupportedError(f"a sequence is named twice in {list(sequences)}", remedy="append its tokens in one piece")


def undeclared(layer: int) -> UnsupportedError:
    """Nothing was ever appended to the layer."""
    return UnsupportedError("the layer holds no tokens", f"layer {layer}", "append to it first")


def unequal_lengths(layer: int, lengths: Iterable[int]) -> UnsupportedError:
    """Sequences of one batch must be equally long."""
    return UnsupportedError(
        f"sequences of {sorted(lengths)} tokens cannot be gathered as one tensor",
        f"layer {layer}",
        "gather them one by one, or pad them to one length",
    )


def cropped_below_zero(length: int) -> UnsupportedError:
    """A length is 0 or more."""
    return UnsupportedError(f"a sequence cannot be cropped to {length} tokens", remedy="give a length of 0 or more")


def no_room(needed_bytes: int, purpose: str, budget_bytes: int, allocated_bytes: int) -> BudgetError:
    """`needed_bytes` would pass the budget beside what is allocated."""
    return BudgetError(
        f"{needed_bytes} more bytes are needed for {purpose}, {budget_bytes - allocated_bytes} of "
        f"{budget_bytes} are available",
        "KV pool",
        "free or crop sequences, use a shorter prompt or a smaller batch, or raise the KV budget",
    )


def _describe(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
