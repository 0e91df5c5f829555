"""Stored rows of expressions against the same expressions dequantised."""

import numpy as np
import pytest
import torch
from torch import nn

from ktitan.errors import WeightError
from ktitan.formats import find_format
from ktitan.weights.expression import Concat, Converted, Held, Reordered, Reshaped, Shifted, Stack, Stored
from ktitan.weights.live_source import LiveSource
from ktitan.weights.rows import layout_of, module_layouts, read_rows
from ktitan.weights.source import FileSource, TensorInfo

from support.gguf_blocks import random_rows

COLUMNS = 256


@pytest.fixture
def store(tmp_path):
    """Makes stored tensors: (format, shape) -> Stored; rows follow each other in one file at odd offsets."""
    file, tensors, blobs = tmp_path / "rows.bin", {}, [b"\1" * 7]
    source = FileSource(str(file), tensors)
    rng = np.random.default_rng()

    def make(kind, *shape):
        raw = random_rows(kind, (*shape, COLUMNS), rng).tobytes()
        info = TensorInfo(f"t{len(tensors)}", (*shape, COLUMNS), kind, str(file), sum(map(len, blobs)), len(raw))
        blobs.append(raw)
        file.write_bytes(b"".join(blobs))
        tensors[info.name] = info
        return Stored(source, info)

    return make


def packed(expression, first, count, entry=None):
    layout = layout_of(expression)
    stored = find_format(layout.format_of(first, count), "test")
    out = np.empty((count, stored.row_bytes(layout.columns)), np.uint8)
    read_rows(expression, out, first, entry)
    return torch.from_numpy(stored.dequantize(out))


def test_a_stored_matrix(store):
    matrix = store("q4_k", 9)
    layout = layout_of(matrix)
    assert (layout.entries, layout.columns, layout.segments) == (1, COLUMNS, (("q4_k", 9),))
    assert layout.stored_bytes == 9 * 144 == matrix.stored_bytes
    assert torch.equal(packed(matrix, 2, 5), matrix.dense(torch.float32)[2:7])


@pytest.mark.parametrize("entry", [0, 2])
def test_an_entry_of_a_stored_stack(store, entry):
    stack = store("q6_k", 3, 5)
    assert layout_of(stack).entries == 3
    assert torch.equal(packed(stack, 1, 4, entry), stack.dense(torch.float32)[entry, 1:5])


def test_gate_and_up_of_two_formats(store):
    joined = Concat([store("q4_k", 3, 4), store("q6_k", 3, 4)], dim=1)
    layout = layout_of(joined)
    assert layout.segments == (("q4_k", 4), ("q6_k", 4))
    assert (layout.format_of(0, 4), layout.format_of(4, 4), layout.format_of(2, 4)) == ("q4_k", "q6_k", None)
    assert layout.format_of(6, 4) is None
    dense = joined.dense(torch.float32)
    for entry in range(3):
        assert torch.equal(packed(joined, 0, 4, entry), dense[entry, :4])
        assert torch.equal(packed(joined, 4, 4, entry), dense[entry, 4:])


def test_a_tensor_an_expert(store):
    gate, up = (Stack([store("q8_0", 4) for _ in range(3)]) for _ in range(2))
    joined = Concat([gate, up], dim=1)
    assert torch.equal(packed(joined, 0, 8, 1), joined.dense(torch.float32)[1])


def test_experts_of_different_formats_have_no_layout(store):
    assert layout_of(Stack([store("q4_k", 4), store("q6_k", 4)])) is None


def test_reordered_rows(store):
    order = torch.randperm(12)
    matrix = Reordered(store("q5_k", 12), order)
    assert torch.equal(packed(matrix, 0, 12), matrix.dense(torch.float32))
    assert torch.equal(packed(matrix, 3, 7), matrix.dense(torch.float32)[3:10])
    joined = Concat([matrix, store("q5_k", 3)], dim=0)
    assert torch.equal(packed(joined, 1, 13), joined.dense(torch.float32)[1:14])


def test_one_entry_added_by_a_shape(store):
    matrix = store("q4_0", 6)
    assert torch.equal(packed(Reshaped(matrix, (1, 6, COLUMNS)), 0, 6, 0), matrix.dense(torch.float32))


def test_a_live_model_is_stored_as_plain_floats():
    module = nn.Linear(24, 5).to(torch.bfloat16)
    weight = LiveSource(module).bindings()["weight"]
    assert isinstance(weight, Held)
    assert layout_of(weight).segments == (("bf16", 5),)
    out = np.empty((3, 48), np.uint8)
    read_rows(weight, out, 1)
    assert torch.equal(torch.from_numpy(out).view(torch.bfloat16), module.weight[1:4])


def test_the_experts_of_a_live_model():
    module = nn.Module()
    module.weight = nn.Parameter(torch.randn(6, 32, 16))
    stack = LiveSource(module).bindings()["weight"]
    layout = layout_of(stack)
    assert (layout.entries, layout.segments, layout.stored_bytes) == (6, (("f32", 32),), 6 * 32 * 16 * 4)
    assert stack.stored_bytes == layout.stored_bytes
    out = np.empty((5, 64), np.uint8)
    read_rows(stack, out, 3, 4)
    assert torch.equal(torch.from_numpy(out).view(torch.float32), module.weight[4, 3:8])


def test_arithmetic_and_transposition_have_no_rows(store):
    matrix = store("q4_k", 4)
    made = Converted([matrix], (COLUMNS, 4), lambda: matrix.dense(torch.float32).T)
    side_by_side = Concat([matrix, store("q4_k", 4)], dim=1)
    flattened = Reshaped(store("q4_k", 2, 4), (8, COLUMNS))
    for expression in (Shifted(matrix, 1.0), made, side_by_side, flattened):
        assert layout_of(expression) is None
        with pytest.raises(WeightError):
            read_rows(expression, np.empty((4, 144), np.uint8))


def test_vectors_have_no_layout(store):
    assert layout_of(Reshaped(store("q4_k", 1), (COLUMNS,))) is None
    assert list(module_layouts({"a": store("q4_k", 4), "b": Shifted(store("q4_k", 4), 1.0)})) == ["a"]


def test_rows_that_are_not_there(store):
    matrix = store("q4_k", 4)
    with pytest.raises(WeightError, match="rows 2 to 5"):
        read_rows(matrix, np.empty((3, 144), np.uint8), 2)
    with pytest.raises(WeightError, match="144 bytes, not 100"):
        read_rows(matrix, np.empty((3, 100), np.uint8))
