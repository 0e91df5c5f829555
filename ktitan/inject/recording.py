"""Records what the routers of a running model choose (`ktitan.tiers.trace`), by hooks that change nothing."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ktitan.errors import IoError, UnsupportedError
from ktitan.inject.decoder import decoder_layers, expert_count
from ktitan.inject.sights import Sight, find_sights
from ktitan.operator import probing
from ktitan.tiers.routing import Router
from ktitan.tiers.trace import save_trace
from ktitan.tiers.trace_steps import StepLog

__all__ = ["TraceRecorder", "start_recording"]

logger = logging.getLogger(__name__)


class TraceRecorder:
    """Collects choices until `close`, which writes the trace. As a context manager it closes at the end, also after
    an error.

    Args:
        path: of the .npz.
        model: name of what is recorded.
        layer_ids: numbers of the decoder layers with experts.
        experts: E, of each of them.
    """

    def __init__(self, path: Path, model: str, layer_ids: list[int], experts: int) -> None:
        self.path = path
        self._model = model
        self._log = StepLog(layer_ids, experts)
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._lock = threading.Lock()
        self._is_open = True

    @property
    def tokens(self) -> int:
        """Recorded so far."""
        return self._log.tokens

    def watch(self, module: nn.Module, hook: Any) -> torch.utils.hooks.RemovableHandle:
        """Let `hook` see what `module` is given."""
        handle = module.register_forward_pre_hook(hook, with_kwargs=True)
        self._hooks.append(handle)
        return handle

    def note(self, layer: int, index: torch.Tensor, weights: torch.Tensor) -> None:
        """The choice of the layer with experts number `layer` in the trace: index [T, K], weights [T, K]."""
        with self._lock:
            if self._is_open:
                self._log.note(layer, index.cpu().numpy(), weights.to(torch.float32).cpu().numpy())

    def foretell(self, layer: int, experts: torch.Tensor) -> None:
        """What was foreseen of it in this step: [T, P]."""
        with self._lock:
            if self._is_open:
                self._log.foretell(layer, experts.cpu().numpy())

    def close(self) -> None:
        """Take the hooks back and write the trace; closing twice does nothing.

        Raises:
            IoError: it cannot be written.
            UnsupportedError: no step was recorded, or layers choose different numbers of experts.
        """
        self.release()
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
        trace = self._log.trace(self._model)
        if trace is None:
            raise UnsupportedError(
                "nothing was recorded: the model has not run",
                str(self.path),
                "generate some tokens while it is recorded",
            )
        save_trace(self.path, trace)
        logger.info("%s: %d tokens of %d layers recorded", self.path, trace.tokens, trace.layers)

    def release(self) -> None:
        """Take the hooks back; what was recorded can still be written."""
        while self._hooks:
            self._hooks.pop().remove()

    def __enter__(self) -> TraceRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # Without a step there is nothing to write; an error on its way says more than that.
        if kind is None or self.tokens:
            self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> TraceRecorder:
        return self


class _Chosen:
    """Pre-hook of experts: hidden [T, H], index [T, K], weights [T, K]."""

    def __init__(self, recorder: TraceRecorder | None, layer: int) -> None:
        self.recorder = recorder
        self.layer = layer

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.recorder is None or torch.compiler.is_compiling():
            return
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        index = next((one for one in tensors if not one.is_floating_point()), None)
        if index is not None and len(tensors) > 2 and index.dim() == 2:
            weights = next(one for one in tensors[1:] if one.is_floating_point())
            self.recorder.note(self.layer, index.detach(), weights.detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> _Chosen:
        return _Chosen(None, self.layer)  # what a copied model does is not recorded


class _Foretold:
    """Pre-hook of the MLP from which a layer is foreseen."""

    def __init__(self, recorder: TraceRecorder | None, layer: int, router: Router, scale: torch.Tensor) -> None:
        self.recorder = recorder
        self.layer = layer
        self.router = router
        self.scale = scale

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs.get("hidden_states", kwargs.get("x"))
        if self.recorder is None or torch.compiler.is_compiling() or not isinstance(hidden, torch.Tensor):
            return
        if hidden.shape[-1] == len(self.scale):
            rows = hidden.detach().reshape(-1, hidden.shape[-1])
            most = min(2 * self.router.form.chosen, self.router.experts)
            with torch.no_grad():
                self.recorder.foretell(self.layer, self.router.choose(rows, most, self.scale))

    def __deepcopy__(self, memo: dict[int, Any]) -> _Foretold:
        return _Foretold(None, self.layer, self.router, self.scale)


def start_recording(model: nn.Module, path: Path, name: str) -> TraceRecorder:
    """Watch the experts of every layer, and the MLPs from which they are foreseen.

    Raises:
        UnsupportedError: no layers with routed experts, or with different numbers of them.
        IoError: there is no such folder, or `path` is something else than a file.
    """
    _check_place(path)
    layers = [layer for layer in decoder_layers(model) if layer.experts is not None]
    counts = {expert_count(model.get_submodule(str(layer.experts))) for layer in layers}
    if len(counts) != 1:
        found = "its layers have different numbers of experts" if counts else "no layer has routed experts"
        raise UnsupportedError(f"routing cannot be recorded: {found}", type(model).__name__, "take another model")
    recorder = TraceRecorder(path, name, [layer.number for layer in layers], counts.pop())
    with probing():
        sights: dict[int, Sight] = {sight.layer: sight for sight in find_sights(model)}
    for place, layer in enumerate(layers):
        recorder.watch(model.get_submodule(str(layer.experts)), _Chosen(recorder, place))
        sight = sights[layer.number]
        if sight.router is not None and sight.scale is not None:
            recorder.watch(model.get_submodule(sight.source), _Foretold(recorder, place, sight.router, sight.scale))
    return recorder


def _check_place(path: Path) -> None:
    """Refuse now what could not be written at the end; a device such as /dev/null would be replaced by a file.

    Raises:
        IoError: as `start_recording`.
    """
    try:
        good = path.parent.is_dir() and os.access(path.parent, os.W_OK) and (path.is_file() or not path.exists())
    except OSError as error:
        raise IoError.of(error, "no file can be written there", path) from error
    if not good:
        raise IoError("no file can be written there", str(path), "name a file in a folder that you may write to")
