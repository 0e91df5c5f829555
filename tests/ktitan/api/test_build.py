"""Configs, tokenizers and generation configs of strangers: what transformers would stumble over is refused by name."""

import json
import time

import pytest

import ktitan
from ktitan.api.build import build_tokenizer, generation_config_of
from ktitan.api.locate import locate
from ktitan.errors import FormatError, UnsupportedError

from support.tiny_models import CONFIGS
from support.tiny_tokenizer import tiny_tokenizer


def folder_with(folder, family, **changes):
    """A config.json alone, which is enough for a plan."""
    config = {**CONFIGS[family]().to_dict(), "architectures": ["LlamaForCausalLM"], **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("family", "changes", "kind", "cause"),
    [
        ("llama", {"num_hidden_layers": 10**9}, FormatError, "num_hidden_layers is 1000000000"),
        ("gemma3_text", {"num_hidden_layers": 2**40}, FormatError, "from 1 to 4096"),
        ("llama", {"text_config": {"n_layer": 10**9}}, FormatError, "n_layer is 1000000000"),
        ("llama", {"hidden_size": 2**31}, UnsupportedError, "rows have 1 to"),
        ("llama", {"hidden_size": 2**62}, FormatError, "hidden_size is"),
        ("deepseek_v3", {"v_head_dim": 0}, UnsupportedError, "would be"),
        ("gemma3_text", {"head_dim": 0}, FormatError, "head_dim is 0"),
        ("llama", {"num_attention_heads": 0}, FormatError, "num_attention_heads is 0"),
        ("gemma3_text", {"layer_types": []}, UnsupportedError, "config"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_sizes_that_no_model_has(tmp_path, family, changes, kind, cause):
    start = time.process_time()
    with pytest.raises(kind, match=cause) as caught:
        ktitan.plan_model(folder_with(tmp_path, family, **changes), device="cpu")
    assert all(fault.remedy for fault in caught.value.faults) and time.process_time() - start < 5


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"a":' * 100_000, "\xff", '{"model_type": "made-up"}', "{}"])
def test_a_config_that_is_none(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises((FormatError, UnsupportedError), match=r"config") as caught:
        ktitan.plan_model(tmp_path, device="cpu")
    assert len(str(caught.value)) < 2000


def tokenizer_folder(folder, changes):
    folder_with(folder, "llama")
    content = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    for key, value in changes.items():
        content[key] = value
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


def test_a_tokenizer_that_is_whole(tmp_path):
    assert build_tokenizer(locate(tokenizer_folder(tmp_path, {})), [])("ab")["input_ids"]


@pytest.mark.parametrize(
    "changes", [{"post_processor": 3}, {"model": {}}, {"added_tokens": [{"id": -1}]}, {"model": None}, {"decoder": []}]
)
def test_a_tokenizer_that_its_library_refuses(tmp_path, changes):
    """`tokenizers` raises Exception itself."""
    with pytest.raises(FormatError, match="tokenizer"):
        build_tokenizer(locate(tokenizer_folder(tmp_path, changes)), [])


@pytest.mark.parametrize(
    "stated", ['{"model_max_length": "long"}', '{"pad_token": 3}', "[]", '{"bos_token": {"a": 1}}']
)
def test_a_tokenizer_config_with_wrong_types(tmp_path, stated):
    folder = tokenizer_folder(tmp_path, {})
    (folder / "tokenizer_config.json").write_text(stated)
    with pytest.raises(FormatError, match="tokenizer"):
        build_tokenizer(locate(folder), [])


def test_a_token_for_the_unknown_that_is_none(tmp_path):
    """Seen only when a character is unknown, in the middle of a chat."""
    folder = tokenizer_folder(tmp_path, {})
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["unk_token"] = "nowhere"
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(FormatError, match="nowhere"):
        build_tokenizer(locate(folder), [])


class FromConfig:
    """A model whose generation config was made from its config."""

    class generation_config:
        _from_model_config = True


@pytest.mark.parametrize("text", ["{", "[]", "", '{"a":' * 100_000])
def test_a_generation_config_that_is_none(tmp_path, text):
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(FormatError, match="JSON") as caught:
        generation_config_of(FromConfig, tmp_path, [])
    assert "generation_config.json" in caught.value.where
