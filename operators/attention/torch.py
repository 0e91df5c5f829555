"""`attention.torch`: grouped-query and latent attention on the stock children and any transformers cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.operator import ModuleWeights, Operator, OperatorConfig, OperatorContext
from ktitan.operators.attention.call import AttentionCall
from ktitan.operators.attention.grouped import grouped_attention
from ktitan.operators.attention.latent import dense_expansion, latent_attention
from ktitan.operators.attention.probe import TOLERANCES, StepInputs, largest_difference, probe_module, with_eager
from ktitan.operators.attention.rotary import Rotation, find_rotation
from ktitan.operators.attention.spec import GroupedSpec, LatentSpec, read_spec
from ktitan.operators.packed import exact_activations
from ktitan.operators.stock import (
    KEEP_REMEDY,
    PROBE_FAULTS,
    fill_parameters,
    mirror_parameters,
    plain_attributes,
    shell_of,
)
from ktitan.registry import register_operator

__all__ = ["TorchAttention", "TorchAttentionConfig"]

# Attention implementations of transformers whose masks this operator reads itself.
_OWN = (None, "eager", "sdpa")

# Verdicts of probes by what fixes them; a config is kept so that its id stays its own.
_verdicts: dict[tuple[Any, ...], tuple[Any, str | None]] = {}

# What `self_check` has found to agree in this process.
_agreed: set[tuple[Any, ...]] = set()


@dataclass(frozen=True)
class TorchAttentionConfig(OperatorConfig):
    """Kwargs of `attention.torch`.

    Attributes:
        absorb: latent attention only: True always computes on the latents, False always expands them to keys and
            values, None takes what costs fewer multiplications (few new tokens: absorbed; a long prompt: expanded).
    """

    absorb: bool | None = None


@register_operator("attention.torch")
class TorchAttention(Operator):
    """Attention over the stock children, which stay below it and are called as modules.

    forward(hidden [B, T, H], position_embeddings, attention_mask, cache or past_key_values) -> (output [B, T, H],
    weights [B, heads, T, S] or None). For transformers' eager and sdpa implementations the arithmetic is this
    operator's; for any other (flash, flex, paged) the stock forward runs on the same children.
    """

    Config = TorchAttentionConfig
    keeps_children = True
    config: Any
    layer_idx: int
    o_proj: Any
    kv_b_proj: Any

    def __init__(self, module: Any, spec: GroupedSpec | LatentSpec, rotation: Rotation, absorb: bool | None) -> None:
        super().__init__()
        attributes = plain_attributes(module)
        for name, value in attributes.items():
            setattr(self, name, value)
        self.stock = type(module)
        self.stock_names = tuple(attributes)
        self.spec = spec
        self.rotation = rotation
        self.absorb = absorb
        self.path = ""
        self.load_device = torch.device("cpu")
        self.load_dtype = torch.float32
        for name, child in module._modules.items():
            self.register_module(name, child)
        mirror_parameters(self, module)

    @classmethod
    def parts(cls, module: Any) -> tuple[GroupedSpec | LatentSpec, Rotation] | str:
        """What the operator knows of a stock module, or why it is not made of known parts."""
        spec = read_spec(module)
        if isinstance(spec, str):
            return spec
        rotation = find_rotation(module)
        return rotation if isinstance(rotation, str) else (spec, rotation)

    @classmethod
    def supports(cls, context: OperatorContext, config: Any) -> str | None:
        """Classes made of known parts whose numbers, on a small random copy, are those of this operator."""
        module = context.module
        parts = cls.parts(module)
        if isinstance(parts, str):
            return parts
        key = (cls, *_verdict_key(module, *parts))
        if key not in _verdicts:
            _verdicts[key] = (module.config, _probe_reason(cls, module, *parts))
        return _verdicts[key][1]

    @classmethod
    def from_module(cls, module: nn.Module, config: Any, context: OperatorContext) -> TorchAttention:
        """Flags and children of `module`; its own parameters (sinks) stay on meta until `load`.

        Raises:
            UnsupportedError: the module is not made of the known parts.
        """
        parts = cls.parts(module)
        if isinstance(parts, str):
            raise UnsupportedError(parts, context.path, KEEP_REMEDY)
        operator = cls(module, *parts, config.absorb)
        operator.path, operator.load_device, operator.load_dtype = context.path, context.device, context.dtype
        return operator

    def load(self, weights: ModuleWeights) -> None:
        """Take the module's direct parameters: `sinks`, where there are any."""
        fill_parameters(self, weights, self.load_device, self.path)

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: Any,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[B, T, H] -> ([B, T, H], weights or None); `cache` or `past_key_values` is among the kwargs.

        Raises:
            UnsupportedError: attentions are to be returned (transformers collects them from its own classes only), or
                several tokens come without a mask onto a cache that holds earlier ones.
        """
        if kwargs.get("output_attentions") or getattr(self.config, "output_attentions", False):
            message = "output_attentions: transformers collects attention weights from its own classes only"
            raise UnsupportedError(message, self.path, 'keep this module with "keep", or do without the weights')
        implementation = self.config._attn_implementation
        if implementation not in _OWN:
            arguments = {"position_embeddings": position_embeddings, "attention_mask": attention_mask, **kwargs}
            return self.stock_twin()(hidden_states, **arguments)
        looks_back = kwargs.get("is_causal")
        new_style = kwargs.get("cache") is not None  # since 5.24 an update also gets the call's kwargs
        call = AttentionCall(
            tokens=hidden_states.shape[1],
            rotation=self.rotation,
            position_embeddings=position_embeddings,
            mask=attention_mask,
            cache=kwargs["cache"] if new_style else kwargs.get("past_key_values"),
            layer=self.layer_idx,
            update_kwargs={"kwargs": kwargs} if new_style else {},
            looks_back=getattr(self, "is_causal", True) if looks_back is None else looks_back,
            eager=implementation == "eager",
            path=self.path,
        )
        return self.attend(hidden_states, call)

    def attend(self, hidden: torch.Tensor, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The arithmetic of one call."""
        if isinstance(self.spec, LatentSpec):
            return latent_attention(self, self.spec, hidden, call, self.absorb)
        return grouped_attention(self, self.spec, hidden, call)

    def stock_twin(self) -> nn.Module:
        """An instance of the stock class that shares this operator's children, parameters and attributes."""
        twin = shell_of(self.stock, {name: getattr(self, name) for name in self.stock_names})
        twin._modules, twin._parameters = self._modules, self._parameters
        return twin

    def self_check(self) -> None:
        """Run the stock class's forward on this operator's loaded children and compare, once per class and dtype.

        Raises:
            UnsupportedError: the numbers differ by more than rounding.
        """
        dtype, device = self.load_dtype, self.load_device
        is_dense = isinstance(self.spec, LatentSpec) and (
            dense_expansion(self.kv_b_proj, torch.empty(0, dtype=dtype, device=device)) is not None
        )
        key = (type(self), self.stock, dtype, device.type, self.spec, self.absorb, is_dense)
        if key in _agreed:
            return
        twin = with_eager(self.stock_twin())
        with exact_activations(self):
            difference = _difference(self, twin, self.o_proj.out_features, dtype, device)
        if difference is None or difference > TOLERANCES[dtype]:
            found = "cannot be compared" if difference is None else f"differ by {difference:.1e} of the largest output"
            message = f"{self.operator_name} and {self.stock.__name__} {found} in {dtype}"
            raise UnsupportedError(message, self.path, 'keep this module with "keep"')
        _agreed.add(key)


def _verdict_key(module: Any, spec: GroupedSpec | LatentSpec, rotation: Rotation) -> tuple[Any, ...]:
    """What the numbers of a stock module depend on, besides its weights."""
    skipped = ("config", "layer_idx")
    flags = {name: value for name, value in plain_attributes(module).items() if name not in skipped}
    return (type(module), id(module.config), spec, rotation, repr(sorted(flags.items(), key=lambda item: item[0])))


def _difference(
    operator: TorchAttention,
    twin: nn.Module,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
    scale: float = 1.0,
    eager: bool = False,
) -> float | None:
    def attend(inputs: StepInputs, cache: Any) -> torch.Tensor:
        call = AttentionCall(
            tokens=inputs.hidden.shape[1],
            rotation=operator.rotation,
            position_embeddings=inputs.position_embeddings,
            mask=inputs.mask,
            cache=cache,
            layer=operator.layer_idx,
            eager=eager,
            path=operator.path,
        )
        return operator.attend(inputs.hidden, call)[0]

    return largest_difference(twin, attend, width, dtype, device, scale)


def _probe_reason(
    kind: type[TorchAttention], module: nn.Module, spec: GroupedSpec | LatentSpec, rotation: Rotation
) -> str | None:
    """Why the class of `module` does not compute what operator `kind` does, found by running both on random numbers."""
    name = type(module).__name__
    absorbs = (True, False) if isinstance(spec, LatentSpec) else (None,)
    try:
        twin = probe_module(module, spec)
        for absorb in absorbs:
            operator = kind(twin, spec, rotation, absorb)
            operator._parameters = twin._parameters
            for eager, scale in ((False, 1.0), (True, 30.0)):
                width = operator.o_proj.out_features
                found = _difference(operator, twin, width, torch.float32, torch.device("cpu"), scale, eager)
                if found is None:
                    return f"no rotary embedding stands beside {name} to try it with"
                if found > TOLERANCES[torch.float32]:
                    return f"{name} computes something else: outputs differ by {found:.1e} on random numbers"
    except PROBE_FAULTS as error:
        return f"{name} could not be tried on random numbers: {error}"
    return None
