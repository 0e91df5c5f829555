"""Sources to convert, made once."""

import pytest
import torch

import ktitan
from ktitan.native import native_reason

from support.good_models import save_folder, save_gguf
from support.tiny_models import tiny_model
from support.tiny_tokenizer import tiny_tokenizer


@pytest.fixture(autouse=True)
def needs_the_library():
    reason = native_reason()
    if reason is not None:
        pytest.skip(f"native library {reason}")


@pytest.fixture(scope="session")
def families(tmp_path_factory):
    """A folder in HuggingFace's format by family."""
    home = tmp_path_factory.mktemp("families")
    for family in ("llama", "llama_tied", "mixtral", "qwen3_moe", "deepseek_v3", "gemma3_text"):
        tiny_model(family, seed=3).save_pretrained(home / family)
        tiny_tokenizer().save_pretrained(home / family)
    return home


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """The smallest folder, and a GGUF of the same."""
    home = tmp_path_factory.mktemp("small")
    return save_folder(home / "folder"), save_gguf(home / "small.gguf")


@pytest.fixture
def logits():
    """Logits of MODEL [1, T, V] for ids that every tiny vocabulary has."""

    def compute(model, **options):
        loaded, _ = ktitan.load(model, device="cpu", **options)
        ids = torch.arange(3, 60).view(1, -1)
        with torch.no_grad():
            return loaded(ids).logits

    return compute
