"""GGUF names of modules, against the names of the tiny model's own file."""

import pytest
from torch import nn

from ktitan.api.planning import prepare
from ktitan.errors import UnsupportedError
from ktitan.weights.gguf_modules import gguf_tensor_names


def test_names_are_those_of_the_file(tiny_gguf):
    ready = prepare(tiny_gguf, device="cpu")
    names = gguf_tensor_names(ready.model)
    stored = {name for source in ready.sources for name in source.tensors if name.endswith(".weight")}
    joined = {name.replace("attn_k_b", "attn_kv_b").replace("attn_v_b", "attn_kv_b") for name in stored}
    assert {name for tensors in names.values() for name in tensors} == joined
    assert names["model.layers.1.mlp.experts"] == tuple(
        f"blk.1.ffn_{role}_exps.weight" for role in ("gate", "up", "down")
    )
    assert names["lm_head"] == ("output.weight",)


def test_an_unknown_family_is_refused():
    with pytest.raises(UnsupportedError, match="no GGUF names"):
        gguf_tensor_names(nn.Linear(2, 2))
