"""Files of tiny models to publish on the fake hub."""

import pytest

from support.fake_hub import read_folder
from support.gguf_files import describe, gguf_tensors, write_model
from support.hub_rig import hub, offline  # noqa: F401
from support.tiny_models import save_tiny
from support.tiny_tokenizer import tiny_tokenizer


@pytest.fixture(scope="session")
def llama_files(tmp_path_factory):
    """A whole repository in HuggingFace's format: two shards, tokenizer, and all that must not be downloaded."""
    folder = tmp_path_factory.mktemp("llama")
    save_tiny("llama", folder, max_shard_size="150KB")
    tiny_tokenizer().save_pretrained(folder)
    pickles = dict.fromkeys(["pytorch_model.bin", "original/consolidated.00.pth"], bytes(30_000))
    doubles = dict.fromkeys(["consolidated.safetensors", "model.safetensors", "onnx/model.onnx"], bytes(30_000))
    return {**read_folder(folder), **pickles, **doubles, "README.md": b"read", "code.py": b"raise SystemExit"}


@pytest.fixture(scope="session")
def gguf_files(tmp_path_factory):
    """Two models of a GGUF repository, one of them split in three, and a projector."""
    folder = tmp_path_factory.mktemp("gguf")
    model = save_tiny("llama", folder / "stock")
    architecture, metadata = describe(model.config)
    write_model(folder / "tiny-Q8_0.gguf", architecture, metadata, gguf_tensors(model), "q8_0")
    split = folder / "F32"
    split.mkdir()
    write_model(split / "tiny.gguf", architecture, metadata, gguf_tensors(model), split_max_size=150_000)
    files = {path.name: path.read_bytes() for path in folder.glob("*.gguf")}
    files |= {f"F32/{path.name}": path.read_bytes() for path in split.glob("*.gguf")}
    return {**files, "mmproj-F16.gguf": b"no model", "config.json": b'{"model_type": "llama"}', "README.md": b"read"}
