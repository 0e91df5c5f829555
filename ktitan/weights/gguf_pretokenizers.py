"""How text is cut before byte-level BPE, by the name in `tokenizer.ggml.pre`.

A vocabulary's merges were learned inside these pieces, so another cut gives other tokens. Patterns are those of the
models' own HuggingFace tokenizers; which name means which pattern: https://github.com/ggml-org/llama.cpp,
src/llama-vocab.cpp, and transformers' `GGUF_PRE_TOKENIZER_SPLITS`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

__all__ = ["PRETOKENIZERS", "PreTokenizer"]


@dataclass(frozen=True)
class PreTokenizer:
    """One way of cutting text.

    Attributes:
        patterns: applied one after the other to the pieces of the one before; matches and what lies between them are
            pieces.
        ignore_merges: a piece that is a token as a whole is taken without looking at the merges.
        add_bos: whether a start token is added when the file does not say.
        compose: text is brought to Unicode's composed form (NFC) first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    compose: bool = False

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        """The `tokenizers` object: the splits, then bytes as visible characters."""
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        """The `tokenizers` object for the composed form, if it is wanted."""
        return normalizers.NFC() if self.compose else None


# Endings that the later patterns share: runs of marks, line ends, spaces.
_SPACES = r"\s+(?!\S)|\s+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _SPACES
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + _SPACES
_CLITICS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_CASED = (f"{_BEFORE_WORD}{_UPPER}*{_LOWER}+", f"{_BEFORE_WORD}{_UPPER}+{_LOWER}*")

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES
_LLAMA3 = f"{_CLITICS}|{_BEFORE_WORD}" + r"\p{L}+|\p{N}{1,3}|" + _TAIL
_QWEN2 = f"{_CLITICS}|{_BEFORE_WORD}" + r"\p{L}+|\p{N}|" + _TAIL
_QWEN35 = f"{_CLITICS}|{_BEFORE_WORD}" + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _SPACES
_TEKKEN = "|".join(_CASED) + r"|\p{N}|" + _SLASH_TAIL
_GPT4O = "|".join(f"{part}{_CLITICS}?" for part in _CASED) + r"|\p{N}{1,3}|" + _SLASH_TAIL

# Kimi K2 (tiktoken): Chinese characters are pieces of their own, so that no cased word takes them in.
_KIMI_WORD = f"{_BEFORE_WORD}[{_UPPER}&&[^\\p{{Han}}]]", f"[{_LOWER}&&[^\\p{{Han}}]]"
_KIMI_K2 = (
    r"\p{Han}+|" + f"{'*'.join(_KIMI_WORD)}+{_CLITICS}?|{'+'.join(_KIMI_WORD)}*{_CLITICS}?|" + r"\p{N}{1,3}|" + _TAIL
)

_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
# DeepSeek LLM's own list of cased letters; it is no Unicode class (some small Armenian and Georgian letters lack).
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_MARKS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK3_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|" + _SPACES
)

_BY_NAMES: dict[tuple[str, ...], PreTokenizer] = {
    ("gpt-2",): PreTokenizer((_GPT2,)),
    ("smollm",): PreTokenizer((r"\p{N}", _GPT2)),
    (
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
    ): PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ("dbrx", "smaug-bpe"): PreTokenizer((_LLAMA3,)),
    ("tekken",): PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    ("qwen2",): PreTokenizer((_QWEN2,), compose=True),
    ("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"): PreTokenizer((_QWEN2,)),
    ("qwen35",): PreTokenizer((_QWEN35,), compose=True),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): PreTokenizer((_GPT4O,)),
    ("deepseek-llm",): PreTokenizer((r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", rf"\s?{_MARKS}", r"\s+$", _HAN, r"\p{N}")),
    ("deepseek-coder",): PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")),
    # tiktoken takes a piece that is a token as a whole.
    ("kimi-k2",): PreTokenizer((_KIMI_K2,), ignore_merges=True),
    ("deepseek-v3",): PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3_WORDS)),
}

PRETOKENIZERS: dict[str, PreTokenizer] = {name: entry for names, entry in _BY_NAMES.items() for name in names}
