"""What streamed operators refuse beyond their twins in RAM, and that nothing is loaded outside of a plan."""

import numpy as np
import pytest

from ktitan.errors import UnsupportedError
from ktitan.registry import operators

from support.operator_rig import fresh_seed, meta_twin, refusal, tiny_model
from support.packed_rig import packed_context, packed_linear, reason_of

STREAMED = [name for name in operators.names() if name.endswith(".streamed")]


def test_there_is_one_of_each_kind_and_its_home_is_the_drive():
    assert STREAMED == ["embedding.streamed", "experts.streamed", "linear.streamed"]
    assert all(operators.get(name).homes == ("nvme",) and operators.get(name).streams for name in STREAMED)


def test_transposed_experts_are_refused():
    experts = tiny_model("gpt_oss", fresh_seed()).model.layers[0].mlp.experts
    assert "transposed" in refusal("experts.streamed", experts)


def test_rows_that_are_in_no_file_are_refused():
    module, weights = packed_linear("q4_k", 256, 12, np.random.default_rng(fresh_seed()))
    assert reason_of("linear.cpu", module, weights) is None
    assert "do not lie in one piece of a file" in reason_of("linear.streamed", module, weights)


def test_without_a_store_nothing_is_loaded():
    module, weights = packed_linear("q4_k", 256, 12, np.random.default_rng(fresh_seed()))
    weights.stored_rows = lambda *_: None
    weights.once = lambda name, make, kind="": make()
    kind = operators.get("linear.streamed")
    context = packed_context(meta_twin(module), weights)
    operator = kind.from_module(context.module, kind.Config(), context)
    with pytest.raises(UnsupportedError, match="one piece of a file"):
        operator.load(weights)
