"""`experts.torch`: the routed experts of one layer as dense tensors; the twin of every other experts operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.integrations import moe as stock_moe

from ktitan.errors import UnsupportedError
from ktitan.operator import ModuleWeights, Operator, OperatorConfig, OperatorContext
from ktitan.operators.stock import (
    KEEP_REMEDY,
    altered_reason,
    fill_parameters,
    mirror_parameters,
    packed_reason,
    plain_attributes,
    shell_of,
    surplus_reason,
)
from ktitan.registry import register_operator

__all__ = ["ExpertFlags", "TorchExperts", "expert_groups", "gate_shell", "read_flags"]


@dataclass(frozen=True)
class ExpertFlags:
    """How a stock experts module lays out and joins its matrices, as `use_experts_implementation` marks it.

    Attributes:
        experts: E.
        is_transposed: matrices are [E, in, out]; otherwise [E, out, in].
        is_concatenated: gate rows come first, then up rows; otherwise they alternate.
        has_bias: `<matrix>_bias` [E, out] is added after each product.
        has_gate: the first matrix is `gate_up_proj` [.., 2I ..]; otherwise `up_proj` [.., I ..].
    """

    experts: int
    is_transposed: bool
    is_concatenated: bool
    has_bias: bool
    has_gate: bool

    @property
    def first(self) -> str:
        """Name of the first matrix."""
        return "gate_up_proj" if self.has_gate else "up_proj"

    @property
    def parameters(self) -> set[str]:
        """Names of all tensors."""
        names = {self.first, "down_proj"}
        return names | {f"{name}_bias" for name in names} if self.has_bias else names


def read_flags(module: Any) -> ExpertFlags | str:
    """The flags of a stock experts module, or the reason why it is not one whose numbers they fix.

    The flags say all only where the class hands its forward to transformers' experts interface, which computes from
    them; a class with a forward of its own may do anything.
    """
    if getattr(type(module).forward, "__globals__", None) is not vars(stock_moe):
        return f"{type(module).__name__} computes in a forward of its own, not through transformers' experts interface"
    if getattr(module, "has_post_expert_norm", False):
        return "it normalises the output of each expert"
    flags = ExpertFlags(
        experts=int(module.num_experts),
        is_transposed=bool(module.is_transposed),
        is_concatenated=bool(module.is_concatenated),
        has_bias=bool(module.has_bias),
        has_gate=bool(module.has_gate),
    )
    return (
        altered_reason(module)
        or surplus_reason(module, flags.parameters, children={"act_fn"})
        or packed_reason(module)
        or _activation_reason(module)
        or _shape_reason(module, flags)
        or flags
    )


def _activation_reason(module: nn.Module) -> str | None:
    activation = module._modules.get("act_fn")
    return "its activation has tensors of its own" if activation is not None and activation.state_dict() else None


def _shape_reason(module: Any, flags: ExpertFlags) -> str | None:
    missing = [name for name in sorted(flags.parameters) if module._parameters.get(name) is None]
    if missing:
        return f"it lacks {', '.join(missing)}"
    first, down = getattr(module, flags.first).shape, module.down_proj.shape
    if flags.is_transposed:
        first, down = (first[0], first[2], first[1]), (down[0], down[2], down[1])
    width = 2 if flags.has_gate else 1
    if not first[0] == down[0] == flags.experts or first[1] != width * down[2] or first[2] != down[1]:
        return f"its {flags.first} {tuple(first)} and down_proj {tuple(down)} do not fit"
    return None


def gate_shell(module: nn.Module) -> Any:
    """A stock experts module without tensors: its gate reads its constants (alpha, limit, act_fn) from itself."""
    gate = shell_of(type(module), plain_attributes(module))
    gate._modules.update(module._modules)
    return gate


def expert_groups(top_k_index: torch.Tensor, experts: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields (expert, slots) for each expert that has tokens, in ascending order.

    top_k_index [T, K] int64; `slots` are positions in its flattened form, so slot // K is the token. An index equal to
    `experts` marks a pair that is not to be computed (expert parallel routing uses it).

    Raises:
        UnsupportedError: an index is above `experts`.
    """
    flat = top_k_index.reshape(-1)
    counts = torch.bincount(flat, minlength=experts + 1).tolist()
    if len(counts) > experts + 1:
        raise UnsupportedError(
            f"expert index {len(counts) - 1} in a layer of {experts} experts",
            remedy=f"let the router give 0 to {experts - 1}, or {experts} for a pair that is left out",
        )
    order = torch.argsort(flat, stable=True)
    start = 0
    for expert, count in enumerate(counts[:experts]):
        if count:
            yield expert, order[start : start + count]
        start += count


@register_operator("experts.torch")
class TorchExperts(Operator):
    """sum_k w_k * down(act(gate(x)) * up(x)) over the chosen experts of each token.

    forward(hidden [T, H], top_k_index [T, K] int64, top_k_weights [T, K]) -> [T, H] in hidden's dtype. The weights come
    normalised and scaled. Products are weighted in the promoted dtype and summed in float32, as transformers' grouped
    implementation does; experts without tokens cost nothing.
    """

    down_proj: torch.Tensor

    def __init__(self, module: Any, flags: ExpertFlags, context: OperatorContext) -> None:
        super().__init__()
        self.path = context.path
        self.load_device = context.device
        self.flags = flags
        self.gate: tuple[Any] = (gate_shell(module),)  # in a tuple it is no child
        mirror_parameters(self, module)

    @classmethod
    def supports(cls, context: OperatorContext, config: OperatorConfig) -> str | None:
        """Every class that transformers' experts interface computes from its flags, with dense weights."""
        flags = read_flags(context.module)
        return flags if isinstance(flags, str) else None

    @classmethod
    def from_module(cls, module: nn.Module, config: OperatorConfig, context: OperatorContext) -> TorchExperts:
        """Shapes, flags, activation and gate function from `module`; tensors stay on meta until `load`.

        Raises:
            UnsupportedError: `supports` refuses the module.
        """
        flags = read_flags(module)
        if isinstance(flags, str):
            raise UnsupportedError(flags, context.path, KEEP_REMEDY)
        return cls(module, flags, context)

    def load(self, weights: ModuleWeights) -> None:
        """Take the matrices and biases."""
        fill_parameters(self, weights, self.load_device, self.path)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """[T, H], [T, K], [T, K] -> [T, H].

        Raises:
            UnsupportedError: an index is above the number of experts.
        """
        rows = hidden_states.to(self.down_proj.dtype)
        pair_weights = top_k_weights.reshape(-1, 1)
        total = torch.zeros_like(hidden_states, dtype=torch.promote_types(hidden_states.dtype, torch.float32))
        for expert, slots in expert_groups(top_k_index, self.flags.experts):
            tokens = slots // top_k_index.shape[1]
            output = self.compute_expert(expert, rows[tokens])
            total.index_add_(0, tokens, (output * pair_weights[slots]).to(total.dtype))
        return total.to(hidden_states.dtype)

    def compute_expert(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        """One expert on its tokens: [n, H] -> [n, H], not weighted."""
        joined = self._product(self.flags.first, expert, rows)
        gate = self.gate[0]
        inner = gate._apply_gate(joined) if self.flags.has_gate else gate.act_fn(joined)
        return self._product("down_proj", expert, inner)

    def _product(self, name: str, expert: int, rows: torch.Tensor) -> torch.Tensor:
        matrix = getattr(self, name)[expert]
        bias = getattr(self, f"{name}_bias")[expert] if self.flags.has_bias else None
        return functional.linear(rows, matrix.T if self.flags.is_transposed else matrix, bias)
