"""Stock transformers against the same model through rules: one table, a row a family."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ktitan
from ktitan.native import native_reason

from support.tiny_models import CONFIGS, on_meta, padded_batch, random_ids, save_tiny

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request, tmp_path_factory):
    """(stock model, injected model) of one family."""
    folder = tmp_path_factory.mktemp(request.param)
    stock = save_tiny(request.param, folder)
    injected = ktitan.optimize_and_load(on_meta(folder), "auto", weights=folder, device="cpu")
    return stock, injected


def test_class_is_kept_and_operators_are_in(pair):
    stock, injected = pair
    assert type(injected) is type(stock)
    assert not injected.training
    rows = {row.operator for row in injected.ktitan.plan.rows}
    native = "cpu" if native_reason() is None else "torch"
    assert {"linear.torch", "embedding.torch", f"norm.{native}", f"attention.{native}"} <= rows
    assert not {"norm.torch", "attention.torch"} & rows or native == "torch"
    sparse = any("experts" in name for name, _ in stock.named_modules())
    assert ("experts.torch" in rows) == sparse
    if native == "cpu":
        assert ("moe.cpu" in rows) == sparse and (sparse or "mlp.cpu" in rows)


def test_logits(pair):
    stock, injected = pair
    ids = random_ids(2, 17)
    with torch.inference_mode():
        assert (stock(ids).logits - injected(ids).logits).abs().max() < TOLERANCE


def test_logits_with_padding(pair):
    stock, injected = pair
    batch = padded_batch()
    with torch.inference_mode():
        difference = (stock(**batch).logits - injected(**batch).logits).abs()
    assert difference[batch["attention_mask"].bool()].max() < TOLERANCE


def test_cached_steps(pair):
    stock, injected = pair
    ids = random_ids(1, 12, seed=5)
    with torch.inference_mode():
        whole = stock(ids).logits
        past = None
        for start, end in ((0, 7), (7, 8), (8, 12)):
            out = injected(ids[:, start:end], past_key_values=past, use_cache=True)
            past = out.past_key_values
            assert (out.logits - whole[:, start:end]).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    "how",
    [
        {"do_sample": False, "max_new_tokens": 64, "min_new_tokens": 64},
        {"do_sample": False, "max_new_tokens": 12, "num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "max_new_tokens": 16, "temperature": 0.8, "top_k": 20},
    ],
    ids=["greedy", "beams", "sampling"],
)
def test_generate(pair, how):
    stock, injected = pair
    batch = padded_batch()
    torch.manual_seed(11)
    wanted = stock.generate(**batch, **how)
    torch.manual_seed(11)
    assert torch.equal(injected.generate(**batch, **how), wanted)


@pytest.mark.fixtures
def test_trained_checkpoint(fixtures_dir):
    folder = fixtures_dir / "models" / "tiny-dsv3"
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    injected = ktitan.optimize_and_load(on_meta(folder), "auto", weights=folder, device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    batch = tokenizer(["The matrix is a linear map from", "import numpy"], return_tensors="pt", padding=True)
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.inference_mode():
        difference = (stock(**batch).logits - injected(**batch).logits).abs()
    assert difference[batch["attention_mask"].bool()].max() < TOLERANCE
    for how in ({"max_new_tokens": 64}, {"max_new_tokens": 16, "num_beams": 3}):
        wanted = stock.generate(**batch, do_sample=False, **how)
        assert torch.equal(injected.generate(**batch, do_sample=False, **how), wanted)
    assert injected.generation_config.eos_token_id == stock.generation_config.eos_token_id
