"""Windows of token ids to score: from a .npy file or array, or cut from a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch

from ktitan.errors import Fault, FormatError, UnsupportedError, WeightError

__all__ = ["Ids", "check_windows", "windows_of_ids", "windows_of_text"]

# What numpy raises for headers that are none.
_ARRAY_FAULTS = (ValueError, TypeError, EOFError, SyntaxError, OverflowError, MemoryError, RecursionError, TokenError)

Ids = str | Path | np.ndarray | torch.Tensor | Sequence[Sequence[int]]


def windows_of_ids(ids: Ids) -> tuple[list[torch.Tensor], str]:
    """Rows of an integer array [rows, tokens], or of the .npy file that holds it, and what to call it in messages.

    Raises:
        WeightError: the file cannot be opened.
        FormatError: it is no .npy file, or holds pickled objects.
        UnsupportedError: not integers, not two-dimensional, fewer than two tokens a row; all at once.
    """
    where = str(ids) if isinstance(ids, str | Path) else "ids"
    array = _read_array(Path(ids)) if isinstance(ids, str | Path) else np.asarray(ids)
    faults = []
    if array.dtype.kind not in "iu":
        faults.append(Fault(f"holds {array.dtype}, not integers", where, "save the ids as int32 or int64"))
    if array.ndim != 2:
        faults.append(Fault(f"has shape {array.shape}, not [rows, tokens]", where, "give one row a window"))
    elif array.shape[0] < 1 or array.shape[1] < 2:
        message = f"has shape {array.shape}: at least one row of two tokens is needed"
        faults.append(Fault(message, where, "the first token of a row is not scored; give longer rows"))
    if faults:
        raise UnsupportedError.from_faults(faults, f"{len(faults)} faults in {where}")
    return list(torch.from_numpy(array.astype(np.int64))), where


def _read_array(path: Path) -> np.ndarray:
    """The array in a .npy file, mapped: a header that promises more than the file holds takes no memory, and objects,
    which would be unpickled, cannot be mapped.
    """
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise WeightError(f"cannot open: {error.strerror or error}", str(path), "check path and permissions") from error
    except _ARRAY_FAULTS as error:
        remedy = "write it with numpy.save: an integer array [rows, tokens]"
        raise FormatError(f"not an array of numbers: {error}", str(path), remedy) from error


def windows_of_text(path: str | Path, tokenizer: Any, window: int) -> tuple[list[torch.Tensor], str]:
    """The text of a UTF-8 file in windows of `window` tokens, and what to call it in messages.

    Where the tokenizer puts a beginning-of-sequence token in front of a text, every window begins with one. A rest that
    does not fill a window is left out, unless it is all there is.

    Raises:
        WeightError: the file cannot be opened.
        FormatError: not UTF-8.
        UnsupportedError: a window is shorter than two tokens, or the text has fewer than two.
    """
    where = str(path)
    if window < 2:
        raise UnsupportedError(f"windows of {window} tokens hold nothing to score", "window", "give at least 2")
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise WeightError(f"cannot open: {error.strerror or error}", where, "check path and permissions") from error
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: byte {error.start} is wrong"
        raise FormatError(message, where, "save or convert it as UTF-8") from error
    head = _leading_special(tokenizer)
    body = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=torch.int64)
    size = window - len(head)
    pieces = [piece for piece in body.split(size) if len(piece) == size] or [body]
    windows = [torch.cat([torch.tensor(head, dtype=torch.int64), piece]) for piece in pieces]
    if len(windows[0]) < 2:
        raise UnsupportedError("the text has fewer than two tokens", where, "give a longer text")
    return windows, where


def _leading_special(tokenizer: Any) -> list[int]:
    """The beginning-of-sequence id when the tokenizer puts one in front of a text, else nothing."""
    start = getattr(tokenizer, "bos_token_id", None)
    ids = tokenizer("a")["input_ids"]
    return [start] if start is not None and ids and ids[0] == start else []


def check_windows(windows: Sequence[torch.Tensor], vocabulary: int, where: str) -> None:
    """Every id must be one of the model's.

    Raises:
        UnsupportedError: ids below 0, or from `vocabulary` on; one fault a row.
    """
    faults = []
    for index, row in enumerate(windows):
        wrong = row[(row < 0) | (row >= vocabulary)]
        if len(wrong):
            shown = ", ".join(str(int(one)) for one in wrong[:3]) + (", ..." if len(wrong) > 3 else "")
            message = f"{len(wrong)} ids are not below the vocabulary's {vocabulary}: {shown}"
            faults.append(Fault(message, f"{where}: row {index}", "give ids of this model's tokenizer"))
    if faults:
        raise UnsupportedError.from_faults(faults, f"{len(faults)} rows of {where} hold ids that the model lacks")
