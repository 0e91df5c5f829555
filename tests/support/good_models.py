"""The smallest whole models of each source kind, saved once and copied by tests that break them."""

import shutil

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from support.gguf_files import describe, gguf_tensors, write_model
from support.tiny_tokenizer import tiny_tokenizer

VOCABULARY = 131
TOKENS = [*(f"<{number:02x}>" for number in range(VOCABULARY - 3)), "a", "b", "ab"]
TOKENIZER = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["a b"]}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def small_llama(**changes):
    """A Llama of two layers with random weights in float32."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes})).eval()


def save_folder(folder, model=None, **options):
    """A HuggingFace folder with weights, config and tokenizer."""
    (small_llama() if model is None else model).save_pretrained(folder, **options)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def save_gguf(path, model=None, more=None, drop=(), tensors=None, tokens=TOKENS, **options):
    """A GGUF file of the same model; `more` and `drop` change its metadata, `tensors` replaces its tensors."""
    model = small_llama() if model is None else model
    architecture, metadata = describe(model.config)
    metadata = {key: value for key, value in {**metadata, **TOKENIZER, **(more or {})}.items() if key not in drop}
    architecture = options.pop("architecture", architecture)
    stored = gguf_tensors(model) if tensors is None else tensors
    return write_model(path, architecture, metadata, stored, tokens=tokens, **options)


def copied(source, target):
    """A copy of a folder or file that a test may break."""
    return shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
