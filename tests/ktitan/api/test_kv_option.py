"""`kv=`: how the KV cache stores numbers, from the option to the pages."""

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

import ktitan
from ktitan.engine.generate import new_cache
from ktitan.engine.kv_native import NativeKVPool
from ktitan.engine.kv_torch import TorchKVPool
from ktitan.errors import UnsupportedError
from ktitan.kv_formats import KV_FORMATS
from ktitan.native import native_reason

from support.tiny_models import random_ids, tiny_model

needs_native = pytest.mark.skipif(native_reason() is not None, reason="no native library")
CONTEXT = 192
# Bytes of one head's 32 numbers.
ROW_BYTES = {"f32": 128, "bf16": 64, "q8": 34}


def wide_model(dtype=torch.float32):
    """Heads of 32 numbers, two layers of two KV heads."""
    sizes = {"hidden_size": 128, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=131, num_hidden_layers=2, max_position_embeddings=256, **sizes)
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def loaded(kv, model=None):
    model = wide_model() if model is None else model
    return ktitan.optimize_and_load(model, "auto", device="cpu", context=CONTEXT, kv=kv)


@needs_native
@pytest.mark.parametrize("kv", KV_FORMATS)
def test_plan_pool_and_answers_follow_the_format(kv):
    stock, ids = wide_model(), random_ids(1, 150)
    with torch.inference_mode():
        expected = stock(ids, past_key_values=DynamicCache()).logits[0, -5:]
    model = loaded(kv, stock)
    plan, page = model.ktitan.plan, 64 * 2 * 2 * 2 * ROW_BYTES[kv]
    assert plan.parts["ram"]["kv"] == CONTEXT // 64 * page
    assert plan.to_json()["kv_format"] == plan.kv_format == kv
    assert (f"KV cache: {kv}" in plan.summary()) == (kv != "f32")
    cache = new_cache(model)
    assert type(cache.pool) is NativeKVPool and cache.pool.format == kv
    with torch.inference_mode():
        model(ids[:, :140], past_key_values=cache)
        found = torch.cat([model(ids[:, at : at + 1], past_key_values=cache).logits[0] for at in range(140, 150)])
    assert cache.pool.allocated_bytes == cache.pool.held_bytes == model.ktitan.kv_allowance.held_bytes == 3 * page
    error = ((found[-5:] - expected).norm() / expected.norm()).item()
    assert error < {"f32": 1e-5, "bf16": 1e-2, "q8": 2e-2}[kv]
    assert (error < 1e-5) == (kv == "f32")


@needs_native
def test_what_is_stored_does_not_depend_on_how_the_prompt_is_cut():
    model, ids, logits = loaded("q8"), random_ids(1, 130), []
    with torch.inference_mode():
        for cut in (1, 64, 129):
            cache = new_cache(model)
            model(ids[:, :cut], past_key_values=cache)
            logits.append(model(ids[:, cut:], past_key_values=cache).logits[0, -1])
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=1e-4, atol=1e-5)


@needs_native
def test_formats_that_a_model_cannot_have_are_refused_with_reasons():
    with pytest.raises(UnsupportedError, match=r"(?s)'fp7' is no format of the KV cache.*choose f32, bf16, q8"):
        loaded("fp7")
    with pytest.raises(UnsupportedError, match=r"(?s)blocks of 32 numbers, and heads are 12 wide.*choose f32 or bf16"):
        loaded("q8", tiny_model("llama"))
    with pytest.raises(UnsupportedError, match="heads are 8 and 16 wide"):
        loaded("q8", tiny_model("deepseek_v3"))
    with pytest.raises(UnsupportedError, match=r"(?s)the model computes in bfloat16.*--dtype float32"):
        loaded("bf16", wide_model(torch.bfloat16))


def test_other_models_keep_torch_pages():
    assert type(new_cache(loaded(None, wide_model(torch.bfloat16))).pool) is TorchKVPool
    assert type(new_cache(wide_model().to("meta")).pool) is TorchKVPool
