"""What routers chose, token by token: recorded once, replayed against any cache (`ktitan bench replay`).

An .npz with the arrays of `Trace` by name. `--record-trace` writes one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ktitan.errors import Fault, FormatError
from ktitan.tiers.arrays import read_arrays, write_arrays

__all__ = ["Trace", "load_trace", "save_trace"]

_REMEDY = "record the trace again with --record-trace"
_MOST_EXPERTS = 1 << 15
_LONGEST_NAME = 1000
# Experts of all layers: five times those of the largest models. A replay takes time and memory for each.
_MOST_RECORDS = 1 << 17


@dataclass(frozen=True)
class Trace:
    """Choices of L layers with experts for N tokens, K of E experts each.

    Attributes:
        topk: [L, N, K] uint8 or uint16, the chosen experts.
        weights: [L, N, K] float16, what each counts in the layer's output.
        row_starts: [S + 1] int32, where sequences begin; the last one is N.
        layer_ids: [L] int32, numbers of the decoder layers, ascending.
        n_experts: E.
        predicted: [L, N, P] int16, experts foreseen for that layer and token, best first, -1 where there was no
            prediction; None when none was recorded.
        model: what was recorded.
    """

    topk: np.ndarray
    weights: np.ndarray
    row_starts: np.ndarray
    layer_ids: np.ndarray
    n_experts: int
    predicted: np.ndarray | None = None
    model: str = ""

    @property
    def layers(self) -> int:
        """L."""
        return int(self.topk.shape[0])

    @property
    def tokens(self) -> int:
        """N."""
        return int(self.topk.shape[1])

    @property
    def chosen(self) -> int:
        """K."""
        return int(self.topk.shape[2])


def load_trace(path: str | Path) -> Trace:
    """Read a trace.

    Raises:
        FormatError: naming everything that is wrong with it.
        IoError: it cannot be read.
    """
    found = read_arrays(path, "trace")
    wrong = _kind_faults(found) or _shape_faults(found) or _value_faults(found)
    if wrong:
        faults = [Fault(f"this is no trace: {text}", str(path), _REMEDY) for text in wrong]
        raise FormatError.from_faults(faults, f"{len(faults)} faults in the trace {path}")
    return Trace(
        found["topk"],
        found["weights"].astype(np.float16, copy=False),
        found["row_starts"].astype(np.int32, copy=False),
        found["layer_ids"].astype(np.int32, copy=False),
        int(found["n_experts"]),
        found.get("predicted"),
        str(found.get("model", "")),
    )


def save_trace(path: str | Path, trace: Trace) -> None:
    """Write a trace; the file is there as a whole or not at all.

    Raises:
        IoError: it cannot be written.
    """
    kind = np.uint8 if trace.n_experts <= 256 else np.uint16
    arrays: dict[str, np.ndarray] = {
        "topk": np.asarray(trace.topk).astype(kind),
        "weights": np.asarray(trace.weights).astype(np.float16),
        "row_starts": np.asarray(trace.row_starts).astype(np.int32),
        "layer_ids": np.asarray(trace.layer_ids).astype(np.int32),
        "n_experts": np.array(trace.n_experts, np.int32),
    }
    if trace.predicted is not None:
        arrays["predicted"] = np.asarray(trace.predicted).astype(np.int16)
    if trace.model:
        arrays["model"] = np.array(trace.model)
    write_arrays(path, arrays, "trace")


def _kind_faults(found: Mapping[str, np.ndarray]) -> list[str]:
    """Arrays that are missing, or of another type or number of dimensions."""
    wanted = {
        "topk": ("uint8, uint16", 3),
        "weights": ("float16, float32", 3),
        "row_starts": ("int32, int64", 1),
        "layer_ids": ("int32, int64", 1),
        "n_experts": ("int32, int64", 0),
        "predicted": ("int16", 3),
    }
    faults = []
    for name, (kinds, dimensions) in wanted.items():
        array = found.get(name)
        if array is None:
            faults += [] if name == "predicted" else [f"there is no array {name}"]
        elif array.dtype.name not in kinds.split(", ") or array.ndim != dimensions:
            faults.append(f"{name} is {array.dtype} with {array.ndim} dimensions, not {kinds} with {dimensions}")
    model = found.get("model")
    if model is not None and not _is_short_text(model):
        faults.append("model is no short text")
    return faults


def _is_short_text(array: np.ndarray) -> bool:
    """Also whether Python can have such a text at all: numpy takes any four bytes for a character."""
    if array.dtype.kind != "U" or array.ndim or array.dtype.itemsize > 4 * _LONGEST_NAME:
        return False
    codes = np.frombuffer(array.astype("=U").tobytes(), np.uint32)
    return not codes.size or int(codes.max()) <= sys.maxunicode


def _shape_faults(found: Mapping[str, np.ndarray]) -> list[str]:
    """Sizes that contradict each other."""
    layers, tokens, chosen = found["topk"].shape
    faults = []
    if not (layers and tokens and chosen):
        faults.append(f"topk has the shape {found['topk'].shape}")
    if found["weights"].shape != found["topk"].shape:
        faults.append(f"weights has the shape {found['weights'].shape}, topk {found['topk'].shape}")
    if found["layer_ids"].shape != (layers,):
        faults.append(f"{found['layer_ids'].size} layer_ids for {layers} layers")
    if found["row_starts"].size < 2:
        faults.append("row_starts has no sequence")
    predicted = found.get("predicted")
    if predicted is not None and predicted.shape[:2] != (layers, tokens):
        faults.append(f"predicted has the shape {predicted.shape}, not {(layers, tokens)} first")
    return faults


def _value_faults(found: Mapping[str, np.ndarray]) -> list[str]:
    """Numbers out of range."""
    topk, starts, layer_ids, experts = found["topk"], found["row_starts"], found["layer_ids"], int(found["n_experts"])
    faults = []
    if not topk.shape[2] <= experts <= _MOST_EXPERTS:
        return [f"n_experts is {experts}, with {topk.shape[2]} chosen"]
    if topk.shape[0] * experts > _MOST_RECORDS:
        return [f"{topk.shape[0]} layers of {experts} experts are more than {_MOST_RECORDS} experts in all"]
    if int(topk.max()) >= experts:
        faults.append(f"topk names expert {int(topk.max())} of {experts}")
    elif topk.shape[2] > 1 and (np.diff(np.sort(topk, axis=2), axis=2) == 0).any():
        faults.append("a token chooses an expert twice")
    if starts[0] != 0 or starts[-1] != topk.shape[1] or (np.diff(starts.astype(np.int64)) <= 0).any():
        faults.append(f"row_starts does not ascend from 0 to {topk.shape[1]}")
    if layer_ids[0] < 0 or (np.diff(layer_ids.astype(np.int64)) <= 0).any():
        faults.append("layer_ids does not ascend")
    predicted = found.get("predicted")
    if predicted is not None and predicted.size and not -1 <= int(predicted.min()) <= int(predicted.max()) < experts:
        faults.append(f"predicted names experts outside of 0..{experts - 1}")
    return faults
