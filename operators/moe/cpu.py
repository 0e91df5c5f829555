"""`moe.cpu`: the block around routed experts, on the CPU in float32: router, experts, a shared expert and its gate."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.native.routing import Router, route
from ktitan.operator import OperatorConfig, OperatorContext
from ktitan.operators.block import KeptBlock
from ktitan.operators.float32 import float32_reason, runs_natively
from ktitan.operators.moe.parts import BlockParts, read_parts, router_of
from ktitan.operators.moe.proof import Proof, combined, prove
from ktitan.operators.stock import KEEP_REMEDY, RECORDER, plain_attributes
from ktitan.registry import register_operator

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["CpuMoe"]

# Verdicts by what fixes them; the block's config is kept so that its id stays its own.
_verdicts: dict[tuple[Any, ...], tuple[Any, Proof | str]] = {}


@register_operator("moe.cpu")
class CpuMoe(KeptBlock):
    """sum_k w_k * expert_k(x) + shared(x) * sigmoid(gate(x)): [B, T, H] -> what the stock block returns.

    Router, experts, shared expert and gate stay children under their own names, and are called as modules; scores and
    choices are native code's (`ktitan.native.routing.route`), from the router's own tensors. Where hooks of others
    watch the router the stock forward runs; while transformers records its logits it is called beside.
    """

    _router: tuple[tuple[Any, ...], Router] | None = None

    def __init__(self, module: nn.Module, parts: BlockParts, proof: Proof, context: OperatorContext) -> None:
        super().__init__(module, context)
        self.parts = parts
        self.proof = proof
        self.router_type = type(module.get_submodule(parts.router))

    @classmethod
    def supports(cls, context: OperatorContext, config: OperatorConfig) -> str | None:
        """Blocks of these parts whose choices, weights and outputs, on random inputs, are those of this operator."""
        reason = float32_reason(context)
        if reason is not None:
            return reason
        found = _read(context.module)
        return found if isinstance(found, str) else None

    @classmethod
    def from_module(cls, module: nn.Module, config: OperatorConfig, context: OperatorContext) -> CpuMoe:
        """Names of the children and the router's form from `module`.

        Raises:
            UnsupportedError: `supports` refuses the module.
        """
        found = _read(module)
        if isinstance(found, str):
            raise UnsupportedError(found, context.path, KEEP_REMEDY)
        return cls(module, *found, context)

    def forward(self, hidden_states: torch.Tensor) -> Any:
        """[B, T, H] -> [B, T, H]; with weights [B T, K] or logits [B T, E] where the stock block returns them."""
        module = getattr(self, self.parts.router)
        router = self.native_router() if runs_natively(hidden_states, self) else None
        if router is None or _is_watched(module):
            return self.stock_twin()(hidden_states)
        rows = hidden_states.reshape(-1, self.parts.hidden)
        if _is_recorded(module):
            module(rows)
        second = self.proof.second
        index, weights, *logits = route(rows, router, logits=second == "logits")
        output = combined(self, self.parts, rows, index, weights).view(hidden_states.shape)
        return output if not second else (output, weights if second == "weights" else logits[0])

    def native_router(self) -> Router | None:
        """The router's tensors as native code reads them, or None where they are others than were proved."""
        module = getattr(self, self.parts.router)
        if type(module) is not self.router_type or "forward" in vars(module):
            return None
        tensors = [*module._parameters.values(), *module._buffers.values()]
        key = tuple((one.data_ptr(), one.dtype, one.device) for one in tensors if one is not None)
        known = self._router
        if known is None or known[0] != key:
            made = router_of(module, self.parts, self.proof.form)
            if made is None:
                return None
            known = self._router = (key, made)
        return known[1]

    def lower(self, builder: Builder, x: Value) -> Value:  # type: ignore[override]
        """x [T, H] -> [T, H]; the children are lowered on their own.

        Raises:
            UnsupportedError: the router carries hooks, or its tensors are not float32 on the CPU.
        """
        parts, router = self.parts, self.native_router()
        if router is None or _is_watched(getattr(self, parts.router)):
            message = "its router is watched by hooks, or is not the stock one in float32 on the CPU"
            raise UnsupportedError(message, self.path, "run it as a module")
        routed = builder.route(x, router)
        total = builder.module(getattr(self, parts.experts), x, routed.index, routed.weights, width=parts.hidden)
        if parts.shared is None:
            return total
        shared = builder.module(getattr(self, parts.shared), x, width=parts.hidden)
        if parts.shared_gate is not None:
            shared = builder.gate(shared, builder.module(getattr(self, parts.shared_gate), x, width=1))
        return builder.add(total, shared)

    def extra_repr(self) -> str:
        """Size and form of the router."""
        return f"hidden={self.parts.hidden}, {self.proof.form}"

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name != "_router"
        }  # addresses mean nothing in a copy


def _read(block: nn.Module) -> tuple[BlockParts, Proof] | str:
    parts = read_parts(block)
    if isinstance(parts, str):
        return parts
    key = _verdict_key(block, parts)
    if key not in _verdicts:
        _verdicts[key] = (getattr(block, "config", None), prove(block, parts))
    proof = _verdicts[key][1]
    return proof if isinstance(proof, str) else (parts, proof)


def _verdict_key(block: nn.Module, parts: BlockParts) -> tuple[Any, ...]:
    """What the numbers of a stock block depend on, besides its weights."""
    router = block.get_submodule(parts.router)
    flags = [plain_attributes(one) for one in (block, router)]
    shapes = tuple((name, tuple(one.shape)) for name, one in router.state_dict().items())
    settings = [sorted((name, repr(value)) for name, value in one.items() if name != "config") for one in flags]
    return type(block), type(router), parts, shapes, id(getattr(block, "config", None)), repr(settings)


def _hooks(module: nn.Module) -> list[Any]:
    return [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]


def _is_watched(module: nn.Module) -> bool:
    """Whether hooks of others than transformers' recorder see what `module` does."""
    return any(getattr(hook, "__module__", "") != RECORDER for hook in _hooks(module))


def _is_recorded(module: nn.Module) -> bool:
    """Whether transformers collects outputs now, and has a hook on `module`; its hooks stay once they are there."""
    if not module._forward_hooks:
        return False
    collector = getattr(sys.modules.get(RECORDER), "_active_collector", None)
    return collector is None or collector.get() is not None
