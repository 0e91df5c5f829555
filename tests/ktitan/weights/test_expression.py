"""Expressions against the same steps done by torch."""

import pytest
import torch
from safetensors.torch import save_file

from ktitan.weights.expression import Concat, Converted, Reordered, Reshaped, Shifted, Stack, Stored
from ktitan.weights.opening import open_source


@pytest.fixture
def tensors():
    return {name: torch.randn(3, 6, 4) for name in "abc"} | {"v": torch.randn(6)}


@pytest.fixture
def leaf(tensors, tmp_path):
    save_file(tensors, tmp_path / "model.safetensors")
    source = open_source(tmp_path)
    return lambda name, entry=None: Stored(source, source.tensors[name], entry)


def same(expression, wanted):
    assert expression.shape == tuple(wanted.shape)
    assert torch.equal(expression.dense(torch.float32), wanted)
    assert torch.equal(expression.dense(torch.bfloat16), wanted.bfloat16())
    strided = torch.zeros(*wanted.shape[:-1], wanted.shape[-1] * 2)[..., ::2]
    expression.write(strided)
    assert torch.equal(strided, wanted)


def test_stored_and_its_entries(leaf, tensors):
    same(leaf("a"), tensors["a"])
    same(leaf("a", 2), tensors["a"][2])
    assert leaf("a", 2).stored_bytes == 6 * 4 * 4


def test_stack_and_concat_make_fused_experts(leaf, tensors):
    gate, up = Stack([leaf("a", 0), leaf("a", 1)]), Stack([leaf("b", 0), leaf("b", 1)])
    wanted = torch.cat([tensors["a"][:2], tensors["b"][:2]], dim=1)
    same(Concat([gate, up], 1), wanted)
    assert Concat([gate, up], 1).stored_bytes == wanted.numel() * 4
    assert Concat([gate, up], 1).formats == ("f32",)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_concat_along_any_dimension(leaf, tensors, dim):
    same(Concat([leaf("a"), leaf("b"), leaf("c")], dim), torch.cat([tensors[n] for n in "abc"], dim))


def test_reordered_rows(leaf, tensors):
    index = torch.randperm(6)
    same(Reordered(leaf("a", 1), index), tensors["a"][1][index])
    same(Reordered(leaf("v"), index), tensors["v"][index])


def test_reshaped_and_shifted(leaf, tensors):
    same(Reshaped(leaf("a"), (9, 8)), tensors["a"].view(9, 8))
    same(Shifted(leaf("v"), -1.0), tensors["v"] - 1.0)


def test_converted_runs_its_function(leaf, tensors):
    part = leaf("a")
    made = Converted([part], (4, 6, 3), lambda: part.dense(torch.float32).permute(2, 1, 0))
    same(made, tensors["a"].permute(2, 1, 0))
    assert [one.info.name for one in made.leaves()] == ["a"]
