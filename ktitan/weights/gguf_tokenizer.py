"""The tokenizer that a GGUF file carries, as a `tokenizers` backend in a stock transformers class.

Two kinds exist: byte-level BPE (`tokenizer.ggml.model` "gpt2") and SentencePiece BPE by scores ("llama").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from ktitan.errors import FormatError, UnsupportedError
from ktitan.registry import nearest
from ktitan.weights.gguf_metadata import GgufKeys, token_id
from ktitan.weights.gguf_pretokenizers import PRETOKENIZERS, PreTokenizer
from ktitan.weights.gguf_source import GgufSource

__all__ = ["tokenizer_from_gguf"]

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
SPACE = "\u2581"
TEMPLATE_KEY = "tokenizer.chat_template"
USE_FOLDER = "load the tokenizer of the model's HuggingFace folder"

Merges = list[tuple[str, str]]


def tokenizer_from_gguf(source: GgufSource, assume: str | None = None) -> PreTrainedTokenizerFast:
    """The file's tokenizer with its special tokens, start and end marks and chat template.

    Args:
        source: the open file.
        assume: name of the split (see `PRETOKENIZERS`) for a byte-level file whose own is missing or unknown; a split
            that is known wins over it.

    Raises:
        UnsupportedError: the kind of tokenizer or its split is unknown.
        FormatError: tokens, merges or scores are missing or do not fit together.
    """
    keys = GgufKeys(source)
    model = keys.text("tokenizer.ggml.model", "none")
    if model not in _BUILDERS:
        raise UnsupportedError(
            f"tokenizer.ggml.model is {model!r}; known: {', '.join(sorted(_BUILDERS))}", source.path, USE_FOLDER
        )
    tokens = keys.items("tokenizer.ggml.tokens", str)
    backend, add_bos = _BUILDERS[model](keys, tokens, assume)
    _add_special(backend, keys, tokens)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        add_bos_token=keys.flag("tokenizer.ggml.add_bos_token", add_bos),
        add_eos_token=keys.flag("tokenizer.ggml.add_eos_token", False),
        model_max_length=keys.integer("context_length"),
        clean_up_tokenization_spaces=False,
        chat_template=_chat_template(source),
        **_named_tokens(source, tokens),
    )


def _byte_level(keys: GgufKeys, tokens: Sequence[str], assume: str | None) -> tuple[Tokenizer, bool]:
    """Byte-level BPE. As in llama.cpp no space is put in front, whatever `add_space_prefix` says."""
    split = _pretokenizer(keys, assume)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = _stored_merges(keys, vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split.ignore_merges))
    backend.normalizer = split.normalizer()
    backend.pre_tokenizer = split.splitter()
    backend.decoder = decoders.ByteLevel()
    return backend, split.add_bos


def _pretokenizer(keys: GgufKeys, assume: str | None) -> PreTokenizer:
    name = keys.text("tokenizer.ggml.pre", "")
    found = PRETOKENIZERS.get(name)
    if found is not None:
        return found
    if assume is None:
        stated = f"the split {name!r} is unknown" if name else "the file does not say how text is split"
        raise UnsupportedError(
            f"{stated} (tokenizer.ggml.pre); GPT-2's split would be assumed, and tokens would quietly be others",
            keys.source.path,
            f"{USE_FOLDER} (its path as MODEL, this file as gguf_path), or write the right name into the file with "
            f"gguf-new-metadata --pre-tokenizer NAME: {', '.join(sorted(PRETOKENIZERS))}",
        )
    if assume not in PRETOKENIZERS:
        raise UnsupportedError(f"no split is named {assume!r}", "assume", nearest(assume, PRETOKENIZERS))
    return PRETOKENIZERS[assume]


def _stored_merges(keys: GgufKeys, vocabulary: dict[str, int]) -> Merges:
    merges: Merges = []
    for index, line in enumerate(keys.items("tokenizer.ggml.merges", str)):
        left, _, right = line.partition(" ")
        if not right or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise FormatError(
                f"merge {index} ({line!r}) does not join two tokens into a third", keys.source.path, USE_FOLDER
            )
        merges.append((left, right))
    return merges


def _sentencepiece(keys: GgufKeys, tokens: Sequence[str], assume: str | None) -> tuple[Tokenizer, bool]:
    """SentencePiece BPE: spaces are a visible mark, unknown characters are bytes.

    As in llama.cpp and in Llama's own tokenizer.json the mark is put before the text and after every special token.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    types = keys.items("tokenizer.ggml.token_type", int, required=False)
    unknown = token_id(keys.source.metadata, "unknown", len(tokens))
    stored = keys.has("tokenizer.ggml.merges")
    merges = _stored_merges(keys, vocabulary) if stored else _scored_merges(keys, vocabulary, tokens)
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=BYTE in types,
        )
    )
    prefix = keys.flag("tokenizer.ggml.add_space_prefix", True)
    start = [normalizers.Prepend(SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*start, normalizers.Replace(" ", SPACE)])
    end = [decoders.Strip(" ", left=1)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *end])
    return backend, True


def _scored_merges(keys: GgufKeys, vocabulary: dict[str, int], tokens: Sequence[str]) -> Merges:
    """Every way to make a token of two others: best score first, of equal ones those of the lowest ids."""
    scores = keys.items("tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        raise FormatError(f"{len(tokens)} tokens have {len(scores)} scores", keys.source.path, USE_FOLDER)
    ranked = [
        (-score, vocabulary[token[:cut]], vocabulary[token[cut:]])
        for token, score in zip(tokens, scores, strict=True)
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, left, right in ranked]


def _add_special(backend: Tokenizer, keys: GgufKeys, tokens: Sequence[str]) -> None:
    """Mark control tokens (skipped in answers) and user-defined ones (kept) as whole in any text."""
    types = keys.items("tokenizer.ggml.token_type", int, required=False)
    if types and len(types) != len(tokens):
        raise FormatError(f"{len(tokens)} tokens have {len(types)} types", keys.source.path, USE_FOLDER)
    pairs = list(zip(tokens, types, strict=False))
    special = [token for token, kind in pairs if kind in (UNKNOWN, CONTROL)]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    plain = [token for token, kind in pairs if kind == USER_DEFINED]
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in plain])


def _named_tokens(source: GgufSource, tokens: Sequence[str]) -> dict[str, str]:
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {ours: token_id(source.metadata, theirs, len(tokens)) for ours, theirs in named.items()}
    return {f"{ours}_token": tokens[index] for ours, index in ids.items() if index is not None}


def _chat_template(source: GgufSource) -> str | dict[str, str] | None:
    """The template, or all by name when the file has more than the default one."""
    keys = GgufKeys(source)
    named = {
        key.removeprefix(f"{TEMPLATE_KEY}."): keys.text(key)
        for key in source.metadata
        if key.startswith(f"{TEMPLATE_KEY}.")
    }
    default = keys.text(TEMPLATE_KEY) if keys.has(TEMPLATE_KEY) else None
    return {**({} if default is None else {"default": default}), **named} if named else default


_Builder = Callable[[GgufKeys, Sequence[str], "str | None"], tuple[Tokenizer, bool]]
_BUILDERS: dict[str, _Builder] = {"gpt2": _byte_level, "llama": _sentencepiece}
