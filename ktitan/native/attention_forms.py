"""What attention and rotation are to the native library: sizes, flags, and tensors as it reads them.

Shape letters: T query tokens, S keys, H query heads, Hk key heads, D and Dv widths of keys and values.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property

import torch

from ktitan.errors import UnsupportedError
from ktitan.native.arguments import check_tensor
from ktitan.native.calls import refuse_gradient

__all__ = [
    "PAIRINGS",
    "Attention",
    "AttentionStruct",
    "MaskStruct",
    "Rotation",
    "RotationStruct",
    "ViewStruct",
    "mask_of",
    "view_of",
]

# How the numbers of a head pair up, in the order of enum kt_pairing: i with i + half, or 2 i with 2 i + 1.
PAIRINGS = ("halves", "neighbours")


class RotationStruct(ctypes.Structure):
    """kt_rotation of csrc/program/ktitan_program.h."""

    _fields_ = (
        ("width", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("turned", ctypes.c_int64),
        ("reads", ctypes.c_int32),
        ("writes", ctypes.c_int32),
    )


class AttentionStruct(ctypes.Structure):
    """kt_attention of csrc/program/ktitan_program.h."""

    _fields_ = (
        ("heads", ctypes.c_int64),
        ("key_heads", ctypes.c_int64),
        ("key_dim", ctypes.c_int64),
        ("value_dim", ctypes.c_int64),
        ("scaling", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("sinks", ctypes.c_void_p),
        ("window", ctypes.c_int64),
        ("latent", ctypes.c_int32),
    )


class MaskStruct(ctypes.Structure):
    """kt_mask."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("is_bool", ctypes.c_int32),
        ("row_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
    )


class ViewStruct(ctypes.Structure):
    """kt_view."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Rotation:
    """Which numbers of a head are turned by position, and how they pair up.

    Llama and most others read and write halves; DeepSeek-V3 (`rope_interleave`) reads neighbours and writes halves;
    DeepSeek-V2's complex product reads and writes neighbours.

    Attributes:
        width: of a head.
        first: number of the first turned one.
        turned: how many are turned, an even number; the others stay.
        reads, writes: of `PAIRINGS`.

    Raises:
        UnsupportedError: the turned part is odd or outside of the head, or there is no such pairing.
    """

    width: int
    first: int
    turned: int
    reads: str = "halves"
    writes: str = "halves"

    def __post_init__(self) -> None:
        if self.reads not in PAIRINGS or self.writes not in PAIRINGS:
            raise UnsupportedError(
                f"pairings {self.reads!r} and {self.writes!r}", "rotation", f"use one of: {', '.join(PAIRINGS)}"
            )
        inside = self.first >= 0 and 0 <= self.turned <= self.width - self.first
        if not inside or self.turned % 2 or self.turned > 1024:
            raise UnsupportedError(
                f"{self.turned} numbers from {self.first} on of a head of {self.width}",
                "rotation",
                "turn an even number of a head's numbers, at most 1024",
            )

    @classmethod
    def of_halves(cls, width: int, turned: int | None = None) -> Rotation:
        """Llama's: the first `turned` numbers (all without it) in two halves."""
        return cls(width, 0, width if turned is None else turned)

    @cached_property
    def struct(self) -> RotationStruct:
        """What the library reads."""
        return RotationStruct(
            self.width, self.first, self.turned, PAIRINGS.index(self.reads), PAIRINGS.index(self.writes)
        )


@dataclass(frozen=True, eq=False)
class Attention:
    """Softmax attention of H query heads on Hk key heads, or on latents that all heads share.

    With `latent`, keys are latents [S, 1, D], values the rotated parts [S, 1, Dv], queries [T, H, D + Dv]: the score is
    q[:D] . latent + q[D:] . rotated, and the result the weighted sum of latents (DeepSeek-V2's absorbed form, arXiv
    2405.04434).

    Attributes:
        heads, key_heads: H, a multiple of Hk; query head h reads key head h // (H / Hk).
        key_dim, value_dim: D and Dv.
        scaling: factor on query times key.
        softcap: bounds the scores to softcap * tanh(scores / softcap) before the mask (Gemma 2); 0: none.
        sinks: [H] logits that take part in the softmax and have no value (gpt-oss), or None.
        window: tokens that a causal one looks back at, itself included; 0: all.
        latent: see above.

    Raises:
        UnsupportedError: the sizes do not fit each other, or the sinks are no float32 [H] on the CPU.
    """

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    scaling: float
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    window: int = 0
    latent: bool = False

    def __post_init__(self) -> None:
        sizes = (self.heads, self.key_heads, self.key_dim, self.value_dim)
        whole = min(sizes) > 0 and self.heads % self.key_heads == 0
        if not whole or self.window < 0 or (self.latent and self.key_heads != 1):
            raise UnsupportedError(
                f"attention of {self.heads} heads on {self.key_heads} of {self.key_dim} and {self.value_dim} numbers"
                f"{', latent' if self.latent else ''}, window {self.window}",
                "attention",
                "give a multiple of the key heads (one with latents), widths above 0 and a window of 0 or more",
            )
        if self.sinks is not None:
            check_tensor("sinks", self.sinks, (self.heads,), torch.float32)

    @classmethod
    def of_latents(cls, heads: int, rank: int, rope_dim: int, scaling: float) -> Attention:
        """Absorbed multi-head latent attention."""
        return cls(heads, 1, rank, rope_dim, scaling, latent=True)

    @property
    def query_dim(self) -> int:
        """Width of a query head."""
        return self.key_dim + self.value_dim if self.latent else self.key_dim

    @property
    def out_dim(self) -> int:
        """Width of a head of the result."""
        return self.key_dim if self.latent else self.value_dim

    @cached_property
    def struct(self) -> AttentionStruct:
        """What the library reads; it holds the address of the sinks."""
        return AttentionStruct(
            self.heads,
            self.key_heads,
            self.key_dim,
            self.value_dim,
            self.scaling,
            self.softcap,
            None if self.sinks is None else self.sinks.data_ptr(),
            self.window,
            self.latent,
        )


def view_of(name: str, x: torch.Tensor, shape: tuple[int, ...]) -> tuple[ViewStruct, torch.Tensor]:
    """x [rows, tokens, heads, width] as the library reads it, and the tensor that it lies in.

    Raises:
        UnsupportedError: x is of another kind or shape, or wants a gradient.
    """
    refuse_gradient(x)
    x = x.detach().resolve_neg()
    dense = x.layout is torch.strided and x.dim() == 4 and (x.stride(3) == 1 or x.shape[3] == 1)
    x = x if dense else x.contiguous()
    if x.shape != shape or x.dtype is not torch.float32 or not x.is_cpu:
        check_tensor(name, x, shape, torch.float32)
    row, token, head, _ = x.stride()
    return ViewStruct(x.data_ptr(), row, head, token), x


def mask_of(mask: torch.Tensor | None, shape: tuple[int, ...]) -> tuple[MaskStruct, torch.Tensor] | None:
    """A mask that broadcasts to [rows, heads, tokens, keys] as the library reads it, and the tensor that it lies in.

    Raises:
        UnsupportedError: the mask has another shape, another kind of numbers, or is not on the CPU.
    """
    if mask is None:
        return None
    fits = mask.dim() <= 4 and all(
        found in (1, wanted) for found, wanted in zip(reversed(mask.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise UnsupportedError(
            f"mask has shape {list(mask.shape)}", "mask", f"give one that broadcasts to {list(shape)}"
        )
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        raise UnsupportedError(f"mask is {mask.dtype}", "mask", "give bool (True: look) or numbers to add")
    if not mask.is_cpu:
        raise UnsupportedError(f"mask is on {mask.device}", "mask", "move it to the CPU before the call")
    given = mask.detach() if mask.dtype is torch.bool else mask.detach().to(torch.float32)
    dense = given.shape and given.shape[-1] == shape[-1] and (given.stride(-1) == 1 or shape[-1] == 1)
    given = given if dense else given.expand(*given.shape[:-1], shape[-1]).contiguous()
    row, head, token, _ = given.expand(shape).stride()
    return MaskStruct(given.data_ptr(), int(given.dtype is torch.bool), row, head, token), given
