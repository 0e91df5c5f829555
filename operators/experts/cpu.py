"""`experts.cpu`: the routed experts of one layer on the CPU, with weights as they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from ktitan.errors import UnsupportedError
from ktitan.lowering import Routed
from ktitan.native import ExpertBank, experts
from ktitan.operator import MemoryNeed, ModuleWeights, Operator, OperatorContext
from ktitan.operators.experts.torch import ExpertFlags, gate_shell, read_flags
from ktitan.operators.linear.cpu import CpuLinearConfig
from ktitan.operators.packed import PackedState, layout_reason, packed_need, read_matrix, rows_reason
from ktitan.operators.stock import KEEP_REMEDY, PROBE_FAULTS, probing, take_bias
from ktitan.registry import register_operator

if TYPE_CHECKING:
    from ktitan.lowering import Builder, Value

__all__ = ["CpuExperts", "CpuExpertsConfig", "activation_of", "expert_biases", "first_rows", "sizes_of"]

# What the native library computes between the two products, by its name there.
_ACTIVATIONS = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True)
class CpuExpertsConfig(CpuLinearConfig):
    """Kwargs of `experts.cpu`: those of `linear.cpu`, for all three matrices."""


@register_operator("experts.cpu")
class CpuExperts(PackedState, Operator):
    """sum_k w_k * down(act(gate(x)) * up(x)) over the chosen experts of each token, in one native call.

    forward(hidden [T, H], top_k_index [T, K] int64, top_k_weights [T, K]) -> [T, H] in hidden's dtype. The weights come
    normalised and scaled; products are summed in float32 in the order of the K choices. The bits depend on the inputs
    and weights only (csrc/cpu/README.md).
    """

    Config = CpuExpertsConfig
    bank: ExpertBank

    def __init__(self, module: Any, flags: ExpertFlags, activation: str, config: Any, context: OperatorContext) -> None:
        super().__init__()
        self.path = context.path
        self.flags = flags
        self.activation = activation
        self.activations = config.activations
        self.hidden, self.inner = sizes_of(module, flags)

    @classmethod
    def supports(cls, context: OperatorContext, config: CpuExpertsConfig) -> str | None:
        """What `experts.torch` supports, on the CPU, with matrices [E, out, in], gate rows before up rows, stored rows
        of one format a matrix, and an activation that the native library has.
        """
        flags = read_flags(context.module)
        if isinstance(flags, str):
            return flags
        if flags.is_transposed or not flags.is_concatenated:
            return "its matrices are transposed, or gate and up rows alternate"
        names = [flags.first, "down_proj"]
        reason = layout_reason(context, config, names)
        if reason is not None:
            return reason
        hidden, inner = sizes_of(context.module, flags)
        parts = [("down_proj", 0, hidden), *((flags.first, part, inner) for part in first_rows(flags, inner))]
        reasons = [rows_reason(context.layouts[name], name, first, count) for name, first, count in parts]
        return next(filter(None, reasons), None) or activation_of(context.module, flags)[1]

    @classmethod
    def from_module(cls, module: nn.Module, config: CpuExpertsConfig, context: OperatorContext) -> CpuExperts:
        """Shapes, flags and activation from `module`; no memory is taken until `load`.

        Raises:
            UnsupportedError: `supports` refuses the module.
        """
        flags = read_flags(module)
        if isinstance(flags, str):
            raise UnsupportedError(flags, context.path, KEEP_REMEDY)
        activation, reason = activation_of(module, flags)
        if reason is not None:
            raise UnsupportedError(reason, context.path, KEEP_REMEDY)
        return cls(module, flags, activation, config, context)

    def load(self, weights: ModuleWeights) -> None:
        """Take the stored rows of all experts, and biases as float32."""
        self.bank = weights.once(self.flags.first, lambda: self._read(weights))

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """[T, H], [T, K], [T, K] -> [T, H].

        Raises:
            UnsupportedError: an index is above the number of experts, or a tensor is not on the CPU.
        """
        return experts(hidden_states, top_k_index, top_k_weights, self.bank, self.activations)

    def lower(self, builder: Builder, x: Value, index: Value, weights: Value) -> Value:  # type: ignore[override]
        """[T, H], [T, K], [T, K] -> [T, H]."""
        return builder.experts(x, Routed(index, weights, index.width), self.bank, self.activations)

    def held(self) -> tuple[Any, ...]:
        """Matrices and biases, once they are loaded."""
        if "bank" not in vars(self):
            return ()
        bank = self.bank
        parts = (bank.gate, bank.up, bank.down, bank.gate_bias, bank.up_bias, bank.down_bias)
        return tuple(part for part in parts if part is not None)

    @classmethod
    def memory(cls, context: OperatorContext, config: CpuExpertsConfig) -> MemoryNeed:
        """The matrices as stored, biases in float32."""
        flags = read_flags(context.module)
        names = ["gate_up_proj" if isinstance(flags, str) else flags.first, "down_proj"]
        need = packed_need(context, config, names)
        biases = [p for name, p in context.module.named_parameters(recurse=False) if name.endswith("_bias")]
        return MemoryNeed(need.resident_bytes + sum(4 * p.numel() for p in biases), need.format, need.kernel)

    def extra_repr(self) -> str:
        """Sizes and formats."""
        stored = f", {self.bank.up.format}, {self.bank.down.format}" if "bank" in vars(self) else ""
        return f"experts={self.flags.experts}, hidden={self.hidden}, inner={self.inner}, {self.activation}{stored}"

    def _read(self, weights: ModuleWeights) -> ExpertBank:
        flags, first = self.flags, self.flags.first
        *gate, up = (
            read_matrix(weights, first, start, self.inner, flags.experts) for start in first_rows(flags, self.inner)
        )
        down = read_matrix(weights, "down_proj", 0, self.hidden, flags.experts)
        biases = expert_biases(weights, flags, self.inner)
        return ExpertBank(flags.experts, gate[0] if gate else None, up, down, self.activation, **biases)


def expert_biases(weights: ModuleWeights, flags: ExpertFlags, inner: int) -> dict[str, torch.Tensor]:
    """Biases as `ExpertBank` takes them, in float32: gate_bias and up_bias [E, I], down_bias [E, H]."""
    if not flags.has_bias:
        return {}
    parts = [part.contiguous() for part in take_bias(weights, f"{flags.first}_bias").split(inner, dim=1)]
    names = ("gate_bias", "up_bias")[-len(parts) :]
    return dict(zip(names, parts, strict=True)) | {"down_bias": take_bias(weights, "down_proj_bias")}


def activation_of(module: Any, flags: ExpertFlags) -> tuple[str, str | None]:
    """(the native library's name for what the stock module puts between its products, None), or ("", why it has none).

    The stock function is run on numbers up to +-40, so that clamps and factors show.
    """
    with probing():
        up, gate = torch.linspace(-40, 40, 997), torch.linspace(40, -37, 997).roll(331)
        stock = gate_shell(module)
        try:
            found = stock._apply_gate(torch.cat([gate, up])[None])[0] if flags.has_gate else stock.act_fn(up)
        except PROBE_FAULTS as error:
            return "", f"its gate could not be tried: {error}"
        for name, function in _ACTIVATIONS.items():
            expected = function(gate) * up if flags.has_gate else function(up)
            if found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-5, atol=1e-5):
                return name, None
    return "", f"its activation is none of {', '.join(_ACTIVATIONS)}"


def first_rows(flags: ExpertFlags, inner: int) -> tuple[int, ...]:
    """First row of gate (where there is one) and of up in the first matrix."""
    return (0, inner) if flags.has_gate else (0,)


def sizes_of(module: Any, flags: ExpertFlags) -> tuple[int, int]:
    """(H, I) of an experts module with matrices [E, out, in]."""
    return int(module.down_proj.shape[1]), int(module.down_proj.shape[2])
