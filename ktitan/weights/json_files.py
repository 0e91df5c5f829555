"""JSON files out of a model's folder, read with bounds: what is no JSON object is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ktitan.errors import FormatError
from ktitan.weights.files import open_regular

__all__ = ["read_json"]

# The largest known: an index of 150 thousand tensors has 15 MiB, a tokenizer of 260 thousand tokens 33 MiB.
MAX_BYTES = 256 << 20


def read_json(path: str | Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The object in the file at `path`.

    Raises:
        FormatError: the file is not UTF-8, not JSON, nested too deep, too large, or its value is no object.
        WeightError: there is no regular file.
        IoError: it cannot be read.
    """
    with open_regular(path) as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise FormatError(f"larger than {max_bytes >> 20} MiB", str(path), "check that it is the right file")
    try:
        value = json.loads(raw.decode("utf-8"))
    except RecursionError as error:
        raise FormatError("not valid JSON here: nested too deep", str(path), "download it again") from error
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are of its kind
        raise FormatError(f"not valid JSON: {error}", str(path), "download it again") from error
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise FormatError(f"not a JSON object but {kind}", str(path), "download it again")
    return value
