"""Runs a stock attention class and the operator side by side on the same children, to show that they agree."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from ktitan.operators.attention.rotary import embed_positions
from ktitan.operators.attention.spec import GroupedSpec, LatentSpec
from ktitan.operators.stock import plain_attributes, probing, shell_of

__all__ = ["TOLERANCES", "StepInputs", "cache_argument", "largest_difference", "probe_module", "with_eager"]

# Largest difference allowed, as a share of the largest output.
TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}

_PROBE_WIDTH = 8  # hidden size of a probe module; its heads keep their real sizes
_PROBE_HEADS = 2  # heads of a probe module with latent attention, where all heads do the same
_READS_HIDDEN = ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa")
_MAKES_HEADS = ("q_proj", "q_b_proj", "kv_b_proj")
_TOKENS = 6
_PADDING = 2  # tokens that the second sequence lacks on the left
_FIRST_POSITION = 150  # so far from 0 that scaled rotary embeddings differ from plain ones


@dataclass(frozen=True)
class StepInputs:
    """One call: hidden [2, T, H], position embeddings, additive mask [2, 1, T, S]."""

    hidden: torch.Tensor
    position_embeddings: Any
    mask: torch.Tensor


Attend = Callable[[StepInputs, Any], torch.Tensor]


def cache_argument(stock: type[nn.Module]) -> str:
    """What the stock forward calls its cache: `cache` (transformers 5.24) or `past_key_values` (before)."""
    return "cache" if "cache" in inspect.signature(inspect.unwrap(stock.forward)).parameters else "past_key_values"


def with_eager(twin: nn.Module) -> nn.Module:
    """`twin` with a copy of its config that asks for the written-out formula; the user's config is not touched."""
    config = copy.copy(twin.config)
    vars(config)["_attn_implementation_internal"] = "eager"
    twin.config = config
    return twin


@probing()
def largest_difference(
    twin: Any, attend: Attend, width: int, dtype: torch.dtype, device: torch.device, scale: float = 1.0
) -> float | None:
    """Largest difference between the stock forward and `attend`, as a share of the largest stock number.

    Two sequences, the second padded on the left, go through a prompt and one further token, each side with its own
    cache; outputs and cached tensors are compared. None when no position embeddings can be made for the class.

    Args:
        twin: an instance of the stock class with real tensors, set to the eager formula.
        attend: the operator: (inputs, cache) -> output [2, T, H].
        width: H of the hidden states.
        dtype: of the hidden states.
        device: where both run.
        scale: size of the hidden states; large ones reach clips and caps.
    """
    name, ours, theirs = cache_argument(type(twin)), DynamicCache(), DynamicCache()
    worst = 0.0
    for inputs in _steps(twin, width, dtype, device, scale):
        if inputs.position_embeddings is None:
            return None
        arguments = {"position_embeddings": inputs.position_embeddings, "attention_mask": inputs.mask, name: theirs}
        expected = twin(inputs.hidden, **arguments)[0]
        actual = attend(inputs, ours)
        seen = torch.isfinite(inputs.mask).all() & (inputs.mask[:, 0].amax(-1, keepdim=True) == 0)
        worst = max(worst, _share(torch.where(seen, actual, 0), torch.where(seen, expected, 0)))
    mine: Any = ours.layers[twin.layer_idx]
    stock: Any = theirs.layers[twin.layer_idx]
    return max(worst, _share(mine.keys, stock.keys), _share(mine.values, stock.values))


def _steps(twin: nn.Module, width: int, dtype: torch.dtype, device: torch.device, scale: float) -> Iterator[StepInputs]:
    """A prompt of some tokens, then one more."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, _TOKENS + 1, width, generator=generator) * scale
    hidden = hidden.to(device, dtype)
    positions = torch.arange(_FIRST_POSITION, _FIRST_POSITION + _TOKENS + 1, device=device).expand(2, -1)
    visible = torch.ones(_TOKENS + 1, _TOKENS + 1, dtype=torch.bool, device=device).tril().repeat(2, 1, 1, 1)
    visible[1, :, :, :_PADDING] = False
    mask = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill(~visible, torch.finfo(dtype).min)
    for start, stop in ((0, _TOKENS), (_TOKENS, _TOKENS + 1)):
        part = hidden[:, start:stop]
        embeddings = embed_positions(twin, part, positions[:, start:stop])
        yield StepInputs(part, embeddings, mask[:, :, start:stop, :stop])


def _share(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference over the largest expected number; infinite for other shapes or bad numbers."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    difference = (actual.double() - expected.double()).abs().max() / expected.double().abs().max().clamp_min(1e-30)
    return float(difference) if torch.isfinite(difference) else float("inf")


@probing()
def probe_module(module: Any, spec: GroupedSpec | LatentSpec) -> nn.Module:
    """A small float32 instance of the class of `module`, with its attributes and random weights, on the CPU.

    Only the hidden size and, for latent attention, the number of heads are cut down: head sizes, ranks, norms, flags
    and config are those of `module`, so the class's own arithmetic is what runs.
    """
    attributes = plain_attributes(module)
    heads = 0
    if isinstance(spec, LatentSpec):
        heads = module.o_proj.in_features // spec.value_dim
        attributes["num_heads"] = _PROBE_HEADS
    twin = with_eager(shell_of(type(module), attributes))
    generator = torch.Generator().manual_seed(0)
    for name, child in module._modules.items():
        if child is None:
            twin.register_module(name, None)
        elif hasattr(child, "in_features"):
            twin.register_module(name, _random_linear(name, child, heads, generator))
        else:
            twin.register_module(name, _random_copy(child, generator))
    for name, tensor in module._parameters.items():
        random = None if tensor is None else nn.Parameter(torch.randn(tensor.shape, generator=generator), False)
        twin.register_parameter(name, random)
    return twin


def _random_linear(name: str, child: Any, heads: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer in the place of `child`; `heads` are those of the module, 0 where they are all kept."""
    inputs = _PROBE_WIDTH if name in _READS_HIDDEN else child.in_features
    outputs = _PROBE_WIDTH if name == "o_proj" else child.out_features
    if heads and name == "o_proj":
        inputs = inputs // heads * _PROBE_HEADS
    if heads and name in _MAKES_HEADS:
        outputs = outputs // heads * _PROBE_HEADS
    linear = nn.Linear(inputs, outputs, bias=getattr(child, "bias", None) is not None, device="meta")
    weight = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if linear.bias is not None:
        linear.bias = nn.Parameter(torch.randn(outputs, generator=generator), requires_grad=False)
    return linear


def _random_copy(child: nn.Module, generator: torch.Generator) -> nn.Module:
    """A norm of the same class and size with random weights."""
    clone = copy.deepcopy(child).to_empty(device="cpu").float()
    for parameter in clone.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return clone.requires_grad_(False)
