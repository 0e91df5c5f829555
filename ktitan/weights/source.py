"""A weight source lists tensors and reads their bytes; it knows no model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ktitan.errors import IoError
from ktitan.formats import Span, find_format
from ktitan.weights.files import FileReader, FileStamp

__all__ = ["FileSource", "TensorInfo", "WeightSource"]

# Dequantising goes through float32 in pieces of this size, so that a large tensor does not exist twice.
PIECE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor.

    Attributes:
        name: as the file spells it.
        shape: torch order; the last dimension is the row that blocks lie along.
        format: name in `ktitan.formats`.
        file: path of the file, or "<model>" for a live module.
        offset: first byte in the file.
        nbytes: stored bytes.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    file: str
    offset: int
    nbytes: int


class WeightSource(ABC):
    """Base of all sources.

    Attributes:
        path: what the user gave: a file, a folder, or "<model>".
        kind: "safetensors", "gguf", "native" or "live"; it decides how names map to a model.
        tensors: every stored tensor by name.
        on_read: called with the number of bytes after each read (progress bars).
    """

    kind: str = ""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tensors: Mapping[str, TensorInfo] = {}
        self.on_read: Callable[[int], None] | None = None

    @abstractmethod
    def read_into(self, name: str, out: torch.Tensor, first_row: int = 0) -> None:
        """Fill `out` with rows of `name` from `first_row` on, converted to the dtype and device of `out`.

        Rows are those of the tensor seen as 2-D [prod(shape[:-1]), shape[-1]]; `out` has a whole number of them.

        Raises:
            IoError: the file is shorter than its header said, changed, or could not be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what is held open; a file source that is read again opens its files again."""


class FileSource(WeightSource):
    """A source whose tensors are byte ranges of files, read by `pread`.

    Args:
        path: what the user gave.
        tensors: every stored tensor by name.
        stamps: of the files when their headers were read.
    """

    def __init__(
        self, path: str, tensors: Mapping[str, TensorInfo], stamps: Mapping[str, FileStamp] | None = None
    ) -> None:
        super().__init__(path)
        self.tensors = tensors
        self._files = FileReader(stamps)

    @property
    def stamps(self) -> Mapping[str, FileStamp]:
        """Stamps of the files when their headers were read, by the names that `spans` uses."""
        return self._files.stamps

    def spans(self, info: TensorInfo, start: int, nbytes: int) -> tuple[Span, ...]:
        """Where `nbytes` stored bytes of a tensor are, from `start` on; one after another they are those bytes."""
        return (Span(info.file, info.offset + start, nbytes),)

    def read_bytes(self, info: TensorInfo, start: int, nbytes: int) -> np.ndarray:
        """`nbytes` stored bytes of a tensor from `start` on, as uint8 [nbytes]."""
        buffer = np.empty(nbytes, np.uint8)
        self.read_stored(info, start, buffer.data)
        return buffer

    def read_into(self, name: str, out: torch.Tensor, first_row: int = 0) -> None:
        """See `WeightSource.read_into`; bytes go straight into `out` when its layout is the stored one."""
        info = self.tensors[name]
        stored = find_format(info.format, info.name)
        columns = info.shape[-1] if info.shape else 1
        row_bytes = stored.row_bytes(columns)
        if row_bytes == 0 or out.numel() == 0:
            return
        if not out.is_contiguous() and out.dim() > 2:
            # Half of a fused tensor, expert by expert: the whole half need not exist a second time.
            rows = out[0].numel() // columns
            for index, entry in enumerate(out):
                self.read_into(name, entry, first_row + index * rows)
            return
        flat = out.view(-1, columns) if out.is_contiguous() else out.reshape(-1, columns)
        direct = stored.torch_dtype is out.dtype and out.device.type == "cpu" and out.is_contiguous()
        if direct:
            self.read_stored(info, first_row * row_bytes, _bytes_of(flat))
            return
        self._convert(info, flat, first_row, row_bytes)
        if not out.is_contiguous():
            out.copy_(flat.view(out.shape))

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _convert(self, info: TensorInfo, flat: torch.Tensor, first_row: int, row_bytes: int) -> None:
        """Read, dequantise and copy in pieces; flat is [rows, columns]."""
        stored = find_format(info.format, info.name)
        step = max(1, PIECE_BYTES // (4 * max(1, flat.shape[1])))
        for row in range(0, flat.shape[0], step):
            rows = min(step, flat.shape[0] - row)
            raw = self.read_bytes(info, (first_row + row) * row_bytes, rows * row_bytes)
            if stored.dequantize is not None:
                numbers = torch.from_numpy(np.ascontiguousarray(stored.dequantize(raw.reshape(rows, row_bytes))))
            else:
                numbers = torch.from_numpy(raw).view(stored.torch_dtype or torch.uint8).view(rows, -1)
            flat[row : row + rows].copy_(numbers)

    def read_stored(self, info: TensorInfo, start: int, view: memoryview) -> None:
        """Fill `view` with the stored bytes of a tensor from `start` on.

        Raises:
            IoError: the file is shorter than its header said, changed, or could not be read.
        """
        if start < 0 or start + len(view) > info.nbytes:
            raise IoError(
                f"read of {len(view)} bytes at {start} leaves the tensor's {info.nbytes} bytes",
                info.name,
                "read within the tensor",
            )
        done = 0
        for span in self.spans(info, start, len(view)):
            self._files.read(span.file, span.offset, view[done : done + span.nbytes])
            done += span.nbytes
        if self.on_read is not None:
            self.on_read(len(view))

    def __deepcopy__(self, memo: dict[int, Any]) -> FileSource:
        # A copied model reads the same files; the source holds no state of a model.
        return self


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor, writable."""
    return tensor.view(-1).view(torch.uint8).numpy().data
