"""What operators read off the stock modules that they replace, and how they take over their tensors."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from torch import nn

from ktitan.errors import WeightError
from ktitan.operator import ModuleWeights, probing

__all__ = [
    "DENSE_DTYPES",
    "KEEP_REMEDY",
    "PROBE_FAULTS",
    "RECORDER",
    "altered_reason",
    "fill_parameters",
    "mirror_parameters",
    "packed_reason",
    "plain_attributes",
    "probing",
    "shell_of",
    "surplus_reason",
    "take_bias",
]

DENSE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

KEEP_REMEDY = 'narrow the match, or use "keep"'

# What the forward of a class that nobody here has seen may raise when it is tried on random numbers.
PROBE_FAULTS = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, AssertionError)

# transformers records hidden states and attentions with hooks of this module; they read outputs and change nothing.
RECORDER = "transformers.utils.output_capturing"


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """What the stock constructor set besides tensors and children: sizes, flags, config, entries that are None."""
    own = vars(nn.Module())
    return {name: value for name, value in vars(module).items() if name not in own and not name.startswith("__")}


def altered_reason(module: nn.Module, forward: Any = None) -> str | None:
    """Why calling `module` may do something else than its class says, or than `forward` when one is given.

    A forward set on the instance (accelerate's hooks do that) or hooks of others would be lost by replacing the module.
    """
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    if any(getattr(hook, "__module__", "") != RECORDER for hook in hooks):
        return "it carries forward hooks, which would be lost"
    if forward is not None and type(module).forward is not forward:
        return f"{type(module).__name__} has a forward of its own"
    return None


def surplus_reason(
    module: nn.Module, parameters: Set[str], buffers: Set[str] = frozenset(), children: Set[str] = frozenset()
) -> str | None:
    """Names the parameters, buffers and children that an operator does not know, or None when there are none."""
    found = {
        "parameters": {name for name, _ in module.named_parameters(recurse=False)} - parameters,
        "buffers": {name for name, _ in module.named_buffers(recurse=False)} - buffers,
        "children": {name for name, _ in module.named_children()} - children,
    }
    clauses = [f"{kind} {', '.join(sorted(names))}" for kind, names in found.items() if names]
    return f"it has {' and '.join(clauses)}, which this operator does not know" if clauses else None


def packed_reason(module: nn.Module) -> str | None:
    """Names the first parameter that is not dense floating point (quantised storage), or None."""
    for name, tensor in module.named_parameters(recurse=False):
        if tensor.dtype not in DENSE_DTYPES:
            return f"its {name} is stored as {str(tensor.dtype).removeprefix('torch.')}, not as dense floats"
    return None


def mirror_parameters(operator: nn.Module, module: nn.Module, dtype: torch.dtype | None = None) -> None:
    """Give `operator` the direct parameters of `module` by name and shape, on meta and without gradient.

    Names that the stock module registers as None stay so. `dtype` overrides the stock dtypes.
    """
    for name, tensor in module._parameters.items():
        if tensor is None:
            operator.register_parameter(name, None)
            continue
        blank = torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device="meta")
        operator.register_parameter(name, nn.Parameter(blank, requires_grad=False))


def fill_parameters(operator: nn.Module, weights: ModuleWeights, device: torch.device, path: str) -> None:
    """Replace every direct parameter of `operator` by its tensor, in the dtype that the parameter has.

    Raises:
        WeightError: a tensor is missing, or has another shape than the stock parameter.
        IoError: the source could not be read.
    """
    for name, blank in list(operator._parameters.items()):
        if blank is None:
            continue
        tensor = weights.tensor(name, blank.dtype, device)
        if tensor.shape != blank.shape:
            message = f"{name} has shape {tuple(tensor.shape)} where {tuple(blank.shape)} is expected"
            raise WeightError(message, path, "check that the weights belong to this model")
        operator.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


def take_bias(weights: ModuleWeights, name: str) -> nn.Parameter:
    """A bias as a float32 parameter on the CPU, for operators that add it to float32 sums.

    Raises:
        WeightError: no source fills it.
        IoError: the source could not be read.
    """
    return nn.Parameter(weights.tensor(name, torch.float32, "cpu"), requires_grad=False)


def shell_of(kind: type[nn.Module], attributes: dict[str, Any]) -> nn.Module:
    """An instance of a stock class that its constructor never ran on: no tensors, no children, eval mode.

    Operators put probe tensors or their own children into it to run the stock forward beside their own.
    """
    shell = kind.__new__(kind)
    nn.Module.__init__(shell)
    vars(shell).update(attributes)
    return shell.eval()
