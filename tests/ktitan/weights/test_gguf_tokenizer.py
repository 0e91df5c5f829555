"""Tokenizers from metadata: the same ids as the tokenizer that the vocabulary was made with."""

import json
from itertools import pairwise

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ktitan.errors import FormatError, UnsupportedError
from ktitan.weights.gguf_pretokenizers import PRETOKENIZERS
from ktitan.weights.gguf_source import open_gguf
from ktitan.weights.gguf_tokenizer import tokenizer_from_gguf

from support.gguf_files import write_model

HARD = "(x):\n->==1234567 naïve Ångström - ½ 🙂  two  spaces\n\n\t"
TEXTS = [
    HARD,
    "",
    " ",
    "\n",
    "  leading",
    "trailing  ",
    "I'LL don't we'Re IT'S",
    "a\r\n\r\nb\n \n  c",
    "a一b龥c\u3040dゟe\u30a0fヿg",
    "中文字符 and 日本語カタカナ, 한국어",
    "x86_64 v1.2.345 ٣٤٥ Ⅷ³",
    "func(a,b){return a/b;}//",
    "Hello<|end|>there <think>x</think>",
    "e\u0301 vs é",
    "\u00a0\u3000\u2028 \u200b",
]


def isolated(*patterns):
    """Splits written out as the models' tokenizer.json files have them, then bytes."""
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(first=()):
    return pre_tokenizers.Sequence([*first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ\u30a0-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
# The model's own pattern has set intersections, [...&&[^\\p{Han}]]; the same with a look-ahead for every character.
KIMI_UPPER, KIMI_LOWER = (
    f"(?:(?!\\p{{Han}})[{kinds}\\p{{Lm}}\\p{{Lo}}\\p{{M}}])" for kinds in (r"\p{Lu}\p{Lt}", r"\p{Ll}")
)
KIMI = (
    r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}*{KIMI_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}+{KIMI_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
REFERENCES = {
    "gpt-2": (byte_level(), None),
    "smollm": (byte_level([pre_tokenizers.Digits(individual_digits=True)]), None),
    "llama-bpe": (isolated(LLAMA3), None),
    "qwen2": (isolated(LLAMA3.replace("{1,3}", "")), normalizers.NFC()),
    "kimi-k2": (isolated(KIMI), None),
    "deepseek-v3": (isolated(*DEEPSEEK_V3), None),
    "deepseek-coder": (isolated(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"), None),
}


def trained(splitter, normalizer=None):
    """A byte-level BPE tokenizer that learned a few merges inside the pieces of `splitter`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def write_bpe(folder, tokenizer, pre=None, **metadata):
    """The vocabulary of a trained tokenizer as a GGUF file, with three added tokens at its end."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    keys = {
        "context_length": 100000,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3, 4, 3],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.eos_token_id": len(tokens),
        "tokenizer.ggml.bos_token_id": len(tokens),
        **({} if pre is None else {"tokenizer.ggml.pre": pre}),
        **metadata,
    }
    return write_model(folder / "t.gguf", "llama", keys, {}, tokens=[*tokens, "<|end|>", "<think>", "<|turn|>"])


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("pre", REFERENCES)
def test_ids_are_those_of_the_trained_tokenizer(tmp_path, pre):
    splitter, normalizer = REFERENCES[pre]
    reference = trained(splitter, normalizer)
    ours = tokenizer_from_gguf(open_gguf(write_bpe(tmp_path, reference, pre)))
    reference.add_special_tokens(["<|end|>"])
    reference.add_tokens(["<think>"])
    for text in TEXTS:
        found = ids(ours, text)
        assert found == reference.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(found) == (text if normalizer is None else normalizer.normalize_str(text))


@pytest.mark.parametrize("pre", REFERENCES)
def test_pieces_are_those_of_the_reference(pre):
    for text in TEXTS:
        expected = REFERENCES[pre][0].pre_tokenize_str(text)
        assert PRETOKENIZERS[pre].splitter().pre_tokenize_str(text) == expected, text


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("中文English混合", ["中文", "English", "混合"]),
        ("北京市 Pascal", ["北京市", " Pascal"]),
        ("camelCaseWORDs don'T 12345", ["camel", "Case", "WORDs", " don'T", " ", "123", "45"]),
        ("かな漢字カナ!\n", ["かな", "漢字", "カナ", "!\n"]),
    ],
)
def test_kimi_keeps_chinese_apart(text, pieces):
    found = PRETOKENIZERS["kimi-k2"].splitter().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in found] == pieces


@pytest.mark.parametrize(("pre", "whole"), [("gpt-2", False), ("llama-bpe", True)])
def test_a_piece_that_is_a_token_needs_no_merges_where_the_model_says_so(tmp_path, pre, whole):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    keys = {"context_length": 8, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre}
    keys |= {"tokenizer.ggml.merges": ["x y"], "tokenizer.ggml.token_type": [1] * 258}
    path = write_model(tmp_path / "t.gguf", "llama", keys, {}, tokens=[*alphabet, "xy", "xyz"])
    found = ids(tokenizer_from_gguf(open_gguf(path)), "xyz")
    assert found == ([257] if whole else [256, alphabet.index("z")])


def test_the_splits_differ():
    """The strings can tell every pair of references apart, so the test above can fail."""
    pieces = {
        pre: str([splitter.pre_tokenize_str(text) for text in TEXTS]) for pre, (splitter, _) in REFERENCES.items()
    }
    assert len(set(pieces.values())) == len(pieces)


def test_the_splits_are_those_of_transformers():
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    table = getattr(mapping, "GGUF_PRE_TOKENIZER_SPLITS", None)
    if table is None:
        pytest.skip("this version of transformers has no table")
    for name, pattern in table.items():
        assert PRETOKENIZERS[name].patterns == (pattern,), name


@pytest.mark.parametrize("pre", [None, "default", "made-up"])
def test_an_unknown_split_is_refused_unless_one_is_assumed(tmp_path, pre):
    reference = trained(REFERENCES["llama-bpe"][0])
    source = open_gguf(write_bpe(tmp_path, reference, pre))
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.pre.*GPT-2") as caught:
        tokenizer_from_gguf(source)
    assert pre is None or repr(pre) in str(caught.value)
    with pytest.raises(UnsupportedError, match="did you mean 'llama-bpe'"):
        tokenizer_from_gguf(source, assume="llama-bqe")
    assert ids(tokenizer_from_gguf(source, assume="llama-bpe"), HARD) == reference.encode(HARD).ids


def test_special_tokens(tmp_path):
    ours = tokenizer_from_gguf(open_gguf(write_bpe(tmp_path, trained(byte_level()), "gpt-2")))
    end = len(ours) - 3
    found = ids(ours, "a<|end|><think><|turn|>b")
    assert found[1:4] == [end, end + 1, end + 2]
    assert ours.decode(found) == "a<|end|><think><|turn|>b"
    assert ours.decode(found, skip_special_tokens=True) == "a<think>b"
    assert (ours.eos_token_id, ours.pad_token, ours.unk_token) == (end, None, None)
    assert ours.model_max_length == 100000


@pytest.mark.parametrize(
    ("pre", "keys", "bos", "eos"),
    [
        ("gpt-2", {}, False, False),
        ("gpt-2", {"add_bos_token": True}, True, False),
        ("gpt-2", {"add_eos_token": True}, False, True),
        ("llama-bpe", {}, True, False),
        ("llama-bpe", {"add_bos_token": False}, False, False),
    ],
)
def test_start_and_end_marks(tmp_path, pre, keys, bos, eos):
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    ours = tokenizer_from_gguf(open_gguf(write_bpe(tmp_path, trained(byte_level()), pre, **metadata)))
    found, mark = ours("ab")["input_ids"], len(ours) - 3
    assert (found[0] == mark, found[-1] == mark) == (bos, eos)
    assert mark not in ids(ours, "ab")


def test_chat_templates(tmp_path):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
    keys = {"tokenizer.chat_template": template, "tokenizer.chat_template.tool_use": "tools"}
    reference = trained(byte_level())
    for given in ({"tokenizer.chat_template": template}, keys):
        ours = tokenizer_from_gguf(open_gguf(write_bpe(tmp_path, reference, "gpt-2", **given)))
        messages = [{"role": "user", "content": "hi"}]
        assert ours.apply_chat_template(messages, tokenize=False) == "user: hi<|end|>"
    assert ours.get_chat_template("tool_use") == "tools"


@pytest.mark.parametrize("merge", ["a", "zz qq", "\u0120 \u0120\u0120\u0120\u0120\u0120\u0120\u0120"])
def test_merges_that_make_no_token_are_refused(tmp_path, merge):
    path = write_bpe(tmp_path, trained(byte_level()), "gpt-2", **{"tokenizer.ggml.merges": [merge]})
    with pytest.raises(FormatError, match="merge 0"):
        tokenizer_from_gguf(open_gguf(path))


def test_other_kinds_are_refused(tmp_path):
    path = write_bpe(tmp_path, trained(byte_level()), "gpt-2", **{"tokenizer.ggml.model": "t5"})
    with pytest.raises(UnsupportedError, match=r"'t5'; known: gpt2, llama"):
        tokenizer_from_gguf(open_gguf(path))


# -- SentencePiece -----------------------------------------------------------------------------------------------------

WORDS = [
    "▁two",
    "▁spaces",
    "two",
    "▁t",
    "wo",
    "▁s",
    "pa",
    "ce",
    "▁▁",
    "▁the",
    "th",
    "he",
    "na",
    "ve",
    "in",
    "▁in",
    "er",
]
WORDS += ["▁th", "ng", "ing", "▁n", "▁spa", "ces", "tr", "st", "11", "12", "123", "==", "->", "()", "▁(", "▁-"]


def spm_tokens():
    """Tokens, scores and types: control, bytes, characters, and words whose scores do not follow their place."""
    characters = sorted(set("▁" + "".join(WORDS) + "abcdefghijklmnopqrstuvwxyz():->=1234567-½ÅI'"))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS, *characters]
    count = len(WORDS) + len(characters)
    scores = [0.0] * 259 + [-float(place * 37 % count) for place in range(count)]
    return tokens, scores, [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)


def write_spm(folder, **metadata):
    tokens, scores, types = spm_tokens()
    keys = {
        "context_length": 4096,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in metadata.items()},
    }
    return write_model(folder / "s.gguf", "llama", keys, {}, tokens=tokens)


def spm_reference(text, prefix):
    """SentencePiece's own rule: again and again join the two neighbours that make the best piece, leftmost first."""
    tokens, scores, _ = spm_tokens()
    known = {token: index for index, token in enumerate(tokens)}
    if not text:
        return []
    pieces = list(((" " if prefix else "") + text).replace(" ", "▁"))
    while True:
        joins = [(-scores[known[a + b]], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in known]
        if not joins:
            break
        _, at = min(joins)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return [number for piece in pieces for number in spm_numbers(piece, known)]


def spm_numbers(piece, known):
    return [known[piece]] if piece in known else [3 + byte for byte in piece.encode()]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_ids(tmp_path, prefix):
    ours = tokenizer_from_gguf(open_gguf(write_spm(tmp_path, add_space_prefix=prefix)))
    for text in [*TEXTS, "two two  the spaces thing", "stringing 11112 123(())->->"]:
        found = ids(ours, text)
        assert found == spm_reference(text, prefix), text
        assert ours.decode(found) == text
        assert ours(text)["input_ids"] == [1, *found]


def test_sentencepiece_defaults(tmp_path):
    """A space in front, as in every Llama file of before the flag, and after each special token."""
    ours = tokenizer_from_gguf(open_gguf(write_spm(tmp_path)))
    assert ids(ours, "two") == spm_reference("two", True)
    assert ids(ours, "</s>two") == [2, *spm_reference("two", True)]
    assert ours.unk_token_id == 0


@pytest.mark.parametrize("lists", [{"scores": [0.0, 1.0]}, {"token_type": [1, 1]}])
def test_lists_of_another_length_are_refused(tmp_path, lists):
    with pytest.raises(FormatError, match="tokens have 2"):
        tokenizer_from_gguf(open_gguf(write_spm(tmp_path, **lists)))
