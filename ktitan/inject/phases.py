"""A module that runs one operator for prompts and another for single tokens."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ktitan.context import Phase, current_step
from ktitan.inject.hops import moved
from ktitan.operator import Operator

__all__ = ["PhaseDevices", "PhaseSwitch", "Phases"]


@dataclass(frozen=True)
class PhaseDevices:
    """Where the two operators compute; the switch as a whole stands on that of decode."""

    decode: torch.device
    prefill: torch.device


class PhaseSwitch(nn.Module):
    """Stands where the stock module stood; `decode` and `prefill` are its two operators.

    The phase is that of the current step; without one (stock generate), a call of the model with more than one token a
    sequence is a prefill. A module that sees tokens as one row [T, H] cannot tell by itself, so `Phases` watches the
    model's input.

    Operators that keep the stock children (attention) share them: the children stay below the switch under their own
    names, so that rules, checkpoints and `set_submodule` find them there.
    """

    def __init__(self, decode: Operator, prefill: Operator, phases: Phases, devices: PhaseDevices) -> None:
        super().__init__()
        self.keeps_children = decode.keeps_children
        self._operators = (decode, prefill)  # in a tuple: no child modules
        self._phases = phases
        self._devices = devices
        if self.keeps_children:
            self._modules = decode._modules = prefill._modules
            self._parameters, self._buffers = decode._parameters, decode._buffers
        else:
            self.decode, self.prefill = decode, prefill

    @property
    def decode_operator(self) -> Operator:
        """The one for single tokens."""
        return self._operators[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator of the phase."""
        decode, prefill = self._operators
        step = current_step()
        phase = step.phase if step is not None else self._phases.phase
        if phase is Phase.DECODE:
            return decode(*args, **kwargs)
        if self._devices.decode == self._devices.prefill:
            return prefill(*args, **kwargs)
        there = self._devices.prefill
        return moved(prefill(*moved(args, there), **moved(kwargs, there)), self._devices.decode)


class Phases:
    """Tells the phase of a forward pass from the shape of the model's input, apart for each thread and task."""

    def __init__(self) -> None:
        self._phase: ContextVar[Phase] = ContextVar("ktitan_phase", default=Phase.DECODE)

    @property
    def phase(self) -> Phase:
        """The phase of the pass that runs here."""
        return self._phase.get()

    def watch(self, model: nn.Module) -> list[torch.utils.hooks.RemovableHandle]:
        """Look at every call of `model`, and of the models inside it that may be called alone, before it runs."""
        watched = [model, *(m for m in model.modules() if m is not model and isinstance(m, PreTrainedModel))]
        return [one.register_forward_pre_hook(self._look, with_kwargs=True) for one in watched]

    def _look(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        tokens = ids if ids is not None else kwargs.get("inputs_embeds")
        if isinstance(tokens, torch.Tensor) and tokens.dim() >= 2:
            self._phase.set(Phase.PREFILL if tokens.shape[1] > 1 else Phase.DECODE)

    def lower(self, builder: Any, *inputs: Any) -> None:
        """Nothing: in a program the step tells the phase."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Phases:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (Phases, ())  # context variables cannot be pickled, and hold nothing between passes
