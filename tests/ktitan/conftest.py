"""Models and tokenizers that tests make themselves: a Llama whose greedy output is any chain of tokens one likes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
SPECIALS = ("<|bos|>", "<|start|>", "<|end|>", "<|pad|>")
VOCABULARY = 264


def byte_characters() -> list[str]:
    """The printable character that byte-level BPE uses for each byte (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def make_byte_tokenizer(chat_template: str | None = CHATML) -> Any:
    """Byte-level tokenizer in which the id of a byte is the byte; 256 to 259 are special tokens, 258 the end mark."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|end|>", pad_token="<|pad|>"
    )
    wrapped.chat_template = chat_template
    return wrapped


def make_spm_tokenizer(words: tuple[str, ...] = ("▁Hi", "▁you", "a", "▁", "lo", ".", "▁한국")) -> Any:
    """SentencePiece-like tokenizer with byte fallback: ids 3 to 258 are bytes, the words follow."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for token in [*(f"<0x{byte:02X}>" for byte in range(256)), *words]:
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), behavior="isolated")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def make_chain_model(following: Mapping[int, int], positions: int = 4096) -> LlamaForCausalLM:
    """A model that answers token t with `following[t]` (0 where nothing is said), whatever came before."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=VOCABULARY,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=256,
        eos_token_id=258,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight.copy_(torch.eye(VOCABULARY))
        for token in range(VOCABULARY):
            model.lm_head.weight[following.get(token, 0), token] = 1.0
    return model


def make_random_model(seed: int, **changes: Any) -> LlamaForCausalLM:
    """A small Llama of random weights, for what depends on attention and on more than one likely token."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, "eos_token_id": 258, **changes})).eval()


def save_model(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Write a model and its tokenizer as a checkpoint folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def rig() -> SimpleNamespace:
    """The makers of this file under one name."""
    makers: dict[str, Callable[..., Any]] = {
        "byte_tokenizer": make_byte_tokenizer,
        "spm_tokenizer": make_spm_tokenizer,
        "chain_model": make_chain_model,
        "random_model": make_random_model,
        "save": save_model,
    }
    return SimpleNamespace(**makers)


@pytest.fixture(scope="session", name="models")
def saved_models(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """One small model in every form, for tests that copy and break it."""
    from support.bad_input import good_models

    return good_models(tmp_path_factory.mktemp("good"))
