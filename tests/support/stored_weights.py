"""Packed matrices written to a file at odd places, and a store that streams them."""

from ktitan.formats import Span
from ktitan.native import ExpertShape, MatrixShape
from ktitan.tiers.record import lay_out
from ktitan.tiers.store import StoreLimits, TierStore
from ktitan.weights.files import stamp_of


class StoredWeights:
    """A file that grows by matrices; every one starts somewhere inside a page."""

    def __init__(self, path, rng):
        self.path = path
        self.rng = rng
        path.write_bytes(b"header")

    def put(self, data):
        """Append bytes behind a random gap; their span."""
        with self.path.open("ab") as file:
            file.write(self.rng.bytes(int(self.rng.integers(0, 9000))))
            offset = file.tell()
            file.write(data)
        return Span(str(self.path), offset, len(data))

    def experts(self, bank):
        """The records of a bank's experts, and their shape."""
        parts = [part for part in (bank.gate, bank.up, bank.down) if part is not None]
        records = []
        for expert in range(bank.experts):
            spans = []
            for part in parts:
                rows = part.rows // bank.experts
                spans.append([self.put(part.data[expert * rows : (expert + 1) * rows].tobytes())])
            records.append(lay_out(f"expert[{expert}]", spans))
        shapes = [
            None if part is None else MatrixShape(part.format, part.rows // bank.experts, part.columns)
            for part in (bank.gate, bank.up, bank.down)
        ]
        biases = (bank.gate_bias, bank.up_bias, bank.down_bias)
        return records, ExpertShape(bank.experts, *shapes, bank.activation, *biases)

    def matrix(self, matrix):
        """The record of a dense layer's weight, and its shape."""
        return lay_out("dense", [[self.put(matrix.data.tobytes())]]), shape_of(matrix)

    def open(self, store, cache_bytes, **options):
        """Open the store with the file as it is now."""
        store.open(StoreLimits(cache_bytes, **options), {str(self.path): stamp_of(self.path)})


def shape_of(matrix):
    """The sizes of a packed matrix."""
    return MatrixShape(matrix.format, matrix.rows, matrix.columns)


def new_store():
    """An empty store."""
    return TierStore()
