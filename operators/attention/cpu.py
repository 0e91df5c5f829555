"""`attention.cpu`: grouped-query and latent attention in float32 by the native library, over pages or tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ktitan.errors import UnsupportedError
from ktitan.native import backend
from ktitan.operator import MemoryNeed, OperatorContext
from ktitan.operators.attention.call import AttentionCall
from ktitan.operators.attention.cpu_grouped import grouped_native, lower_grouped
from ktitan.operators.attention.cpu_latent import Absorbed, absorbed_bytes, latent_native, lower_latent, source_of
from ktitan.operators.attention.latent import dense_expansion
from ktitan.operators.attention.native import window_of
from ktitan.operators.attention.rotary import Rotation
from ktitan.operators.attention.spec import GroupedSpec, LatentSpec, read_spec
from ktitan.operators.attention.torch import TorchAttention, TorchAttentionConfig
from ktitan.operators.attention.turning import Turning, find_turning
from ktitan.operators.float32 import float32_reason, runs_natively
from ktitan.operators.stock import KEEP_REMEDY
from ktitan.registry import register_operator

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["CpuAttention", "CpuAttentionConfig"]

# What a weight must be like to be taken apart: of its dtype and on its device.
_LIKE = torch.empty(0, dtype=torch.float32, device="cpu")


@dataclass(frozen=True)
class CpuAttentionConfig(TorchAttentionConfig):
    """Kwargs of `attention.cpu`.

    Attributes:
        absorb: latent attention only: None and True compute on the latents wherever kv_b_proj has dense weights, so
            that a prompt has the same bits however it is cut; False expands them to keys and values.
    """


@register_operator("attention.cpu")
class CpuAttention(TorchAttention):
    """Attention over the stock children in float32, with `attention.torch`'s forward.

    In a cache of pages that native code owns, the bits depend on a token and those before it only: not on how a prompt
    is cut, on the batch or the number of threads. Calls that cannot be native (`runs_natively`) compute as
    `attention.torch` does. Weights are not returned.
    """

    Config = CpuAttentionConfig
    q_proj: Any

    def __init__(self, module: Any, spec: GroupedSpec | LatentSpec, rotation: Rotation, absorb: bool | None) -> None:
        super().__init__(module, spec, rotation, absorb)
        found = find_turning(module, rotation, _turned_width(spec))
        if isinstance(found, str):
            raise UnsupportedError(found, "attention.cpu", KEEP_REMEDY)
        self.turning: Turning = found
        self.window = window_of(module)
        self._absorbed: Absorbed | None = None

    @classmethod
    def parts(cls, module: Any) -> tuple[GroupedSpec | LatentSpec, Rotation] | str:
        """As `attention.torch` has them; the rotary function must be one that the native library computes, too."""
        parts = super().parts(module)
        if isinstance(parts, str):
            return parts
        found = find_turning(module, parts[1], _turned_width(parts[0]))
        return found if isinstance(found, str) else parts

    @classmethod
    def supports(cls, context: OperatorContext, config: Any) -> str | None:
        """What `attention.torch` supports, in float32 on the CPU, where the native library is there."""
        return float32_reason(context) or super().supports(context, config)

    def attend(self, hidden: torch.Tensor, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The arithmetic of one call."""
        if not runs_natively(hidden, self):
            return super().attend(hidden, call)
        if isinstance(self.spec, LatentSpec):
            return latent_native(self, self.spec, hidden, call, self.absorbed()), None
        return grouped_native(self, self.spec, hidden, call), None

    def absorbed(self) -> Absorbed | None:
        """The matrices of the absorbed form, made again when kv_b_proj's weight has changed; None where it must be
        called: it is not dense, carries an adapter, or `absorb` is false.
        """
        if self.absorb is False or not isinstance(self.spec, LatentSpec):
            return None
        weight = dense_expansion(self.kv_b_proj, _LIKE)
        if weight is None:
            self._absorbed = None
        elif self._absorbed is None or self._absorbed.source != source_of(weight):
            self._absorbed = Absorbed.of(weight, self.spec)
        return self._absorbed

    def self_check(self) -> None:
        """As `attention.torch` checks itself; takes kv_b_proj apart, too, so that no call has to.

        Raises:
            UnsupportedError: the numbers differ by more than rounding.
        """
        self.absorbed()
        super().self_check()

    def held(self) -> tuple[Any, ...]:
        """The matrices of the absorbed form."""
        return () if self._absorbed is None else (self._absorbed.keys, self._absorbed.values)

    def lower(self, builder: Builder, x: Value) -> Value:  # type: ignore[override]
        """Append the attention of `x` to a program.

        Raises:
            UnsupportedError: it looks ahead, clips its projections, has no absorbed form, or was cast.
        """
        if not getattr(self, "is_causal", True):
            raise UnsupportedError("it looks ahead", self.path, "programs run decoders only")
        if isinstance(self.spec, LatentSpec):
            return lower_latent(self, self.spec, self.absorbed(), builder, x)
        return lower_grouped(self, self.spec, builder, x)

    @classmethod
    def memory(cls, context: OperatorContext, config: Any) -> MemoryNeed:
        """Its own tensors, and the copies of kv_b_proj's parts in the absorbed form."""
        need = super().memory(context, config)
        spec, extra = read_spec(context.module), 0
        if isinstance(spec, LatentSpec) and config.absorb is not False:
            extra = absorbed_bytes(context.module, spec)
        return replace(need, resident_bytes=need.resident_bytes + extra, kernel=f"{backend().name} f32")


def _turned_width(spec: GroupedSpec | LatentSpec) -> int:
    """Numbers of a head that the stock rotary function gets."""
    return spec.rope_dim if isinstance(spec, LatentSpec) else spec.head_dim
