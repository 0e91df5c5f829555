"""`norm.torch`: root-mean-square norms, whose published forms differ in rounding and in what the weight means."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.operator import ModuleWeights, Operator, OperatorConfig, OperatorContext
from ktitan.operators.stock import (
    KEEP_REMEDY,
    PROBE_FAULTS,
    altered_reason,
    fill_parameters,
    mirror_parameters,
    packed_reason,
    plain_attributes,
    probing,
    surplus_reason,
)
from ktitan.registry import register_operator

__all__ = ["NormForm", "TorchNorm", "rms_norm"]


@dataclass(frozen=True)
class NormForm:
    """Which of the forms a class computes.

    Attributes:
        unit_offset: the factor is 1 + w (Gemma) and not w.
        cast_first: x_hat is rounded to the input's dtype before the product (Llama); otherwise the product is made in
            float32 and rounded once (Gemma, gpt-oss, OLMo 2).
    """

    unit_offset: bool
    cast_first: bool


FORMS = (
    NormForm(unit_offset=False, cast_first=True),
    NormForm(unit_offset=False, cast_first=False),
    NormForm(unit_offset=True, cast_first=False),
)

_PROBE_SCALES = (1.0, 300.0)  # sizes of the probe's inputs; large ones reach clips
_PROBE_DTYPES = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
)

_forms: dict[tuple[Any, ...], NormForm | None] = {}


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, form: NormForm) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) times the weight factor, over the last dimension (Zhang and Sennrich 2019).

    x [..., H] of any float dtype; the mean is taken in float32. The result has x's dtype, except that `cast_first`
    promotes to a wider weight's dtype, as the stock Llama norm does.
    """
    wide = x.to(torch.float32)
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if form.cast_first:
        return weight * scaled.to(x.dtype)
    factor = weight.to(torch.float32)
    return (scaled * (1.0 + factor if form.unit_offset else factor)).to(x.dtype)


@register_operator("norm.torch")
class TorchNorm(Operator):
    """RMS norm with weight [H]: [..., H] -> [..., H], bit-equal to the stock class."""

    weight: torch.Tensor

    def __init__(self, module: Any, form: NormForm, context: OperatorContext) -> None:
        super().__init__()
        self.path = context.path
        self.load_device = context.device
        self.form = form
        self.eps = _eps(module)
        mirror_parameters(self, module)

    @classmethod
    def supports(cls, context: OperatorContext, config: OperatorConfig) -> str | None:
        """Any class whose numbers are those of one form, to the bit, in float32, bfloat16 and float16."""
        module: Any = context.module
        reason = altered_reason(module) or surplus_reason(module, {"weight"}) or packed_reason(module)
        if reason is not None:
            return reason
        if module._parameters.get("weight") is None or module.weight.dim() != 1:
            return "it has no weight vector"
        if not isinstance(_eps(module), float):
            return "it has no eps or variance_epsilon"
        if len(inspect.signature(type(module).forward).parameters) != 2:
            return "its forward takes more than one tensor"
        return None if norm_form(module) else "it computes neither w * x_hat nor (1 + w) * x_hat of an RMS norm"

    @classmethod
    def from_module(cls, module: nn.Module, config: OperatorConfig, context: OperatorContext) -> TorchNorm:
        """Shape, eps and form from `module`; the weight stays on meta until `load`.

        Raises:
            UnsupportedError: the class has none of the forms.
        """
        form = norm_form(module)
        if form is None:
            raise UnsupportedError(
                f"{type(module).__name__} is no RMS norm that {cls.operator_name} knows", context.path, KEEP_REMEDY
            )
        return cls(module, form, context)

    def load(self, weights: ModuleWeights) -> None:
        """Take `weight`."""
        fill_parameters(self, weights, self.load_device, self.path)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        return rms_norm(hidden_states, self.weight, self.eps, self.form)

    def extra_repr(self) -> str:
        """Size, eps and form."""
        return f"{tuple(self.weight.shape)}, eps={self.eps}, {self.form}"


def norm_form(module: Any) -> NormForm | None:
    """The form of a stock norm, found by running its class on random numbers; remembered per class and settings."""
    settings = plain_attributes(module)
    key = (type(module), module.weight.shape, repr(sorted(settings.items(), key=lambda item: item[0])))
    if key not in _forms:
        matching = [form for form in FORMS if _computes(module, form)]
        _forms[key] = matching[0] if matching else None
    return _forms[key]


def _eps(module: nn.Module) -> Any:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


@probing()
def _computes(module: Any, form: NormForm) -> bool:
    """Whether a copy of `module` with random weights gives the bits of `form` for every dtype and input size."""
    generator = torch.Generator().manual_seed(0)
    width = module.weight.shape[0]
    for input_dtype, weight_dtype in _PROBE_DTYPES:
        clone = copy.deepcopy(module).to_empty(device="cpu").to(weight_dtype)
        clone.weight.copy_(torch.randn(width, generator=generator))
        for scale in _PROBE_SCALES:
            x = (torch.randn(2, 3, width, generator=generator) * scale).to(input_dtype)
            try:
                expected = clone(x)
            except PROBE_FAULTS:
                return False
            actual = rms_norm(x, clone.weight, _eps(module), form)
            if expected.dtype != actual.dtype or not torch.equal(expected, actual):
                return False
    return True
