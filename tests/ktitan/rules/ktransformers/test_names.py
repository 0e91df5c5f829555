"""A translated name must hit a path exactly where `re.search` finds the pattern that it comes from."""

import random
import re

import pytest

from ktitan.rules import Match
from ktitan.rules.ktransformers.names import whole_path

HEADS = [
    r"^model\.layers\.", r"model\.layers\.", "^model.layers.", "", "^", r"\Amodel\.", "^(?:model|lm_head)",
]  # fmt: skip
NUMBERS = [
    "(0|[1-9])", "([0-7])", "(?:8|9|1[0-5])", "[3456][0-9]", "([12][0-9]|[3-9])", "5", r"\d+", "[0-9]", "(1)", ".*",
    "(0|[1-9]|[1-5][0-9]|60)", "([3-9]|[1-9][0-9]+)", "[0|1]", "([0|1])",
    "(5|[1-9][0-9][0-9][0-9][0-9])",
]  # fmt: skip
MIDDLES = [
    r"\.", r"\.mlp\.", r"\.(?!self_attn\.kv_b_proj).*", r"\..*\.", "", ".", r"\.(?!.*gate)", r"\.(mlp|self_attn)\.",
    r"\.[^.]*\.", r"\.(?P<part>\w+)\.", r"(?<=5)\.",
]  # fmt: skip
TAILS = [
    "experts$", "experts", "", "$", ".*$", ".*", r"\Z", "(gate|up)_proj$", "experts|lm_head", "(?:up_proj)|norm$",
    ".*?", r"\w+\.\w$", "é.*", "[)|(]?$", "(a)|(^model.norm)|(lm_head)", r"\$", ".+", "(?=proj)", r"(\w)\1",
]  # fmt: skip
WHOLE = [
    r"(a\)|b)$|lm", r"\[|x", r"a\|b", r"(lm_head\(|\(a)", r"^(\[)|b$", r"(?:x\])|[\]]",
    "", "^$", "$", "^", ".*", "lm_head", "^lm_head$", "(lm_head)", "((a)|(b))", "()", "a|", "|^b$", "(?i)LM_HEAD",
    r"\.\*$", r"a\\$", "[]|]x", "[^]|]", "(?#note (in|side)x", "(?x) model # a ) comment", "(?s:.)x", "(a)(?(1)b|c)",
    "^^a$$", "x$|^y", r"(^model\.layers\.([3456][0-9])\.)|(model.norm)|(lm_head)", r"^model\.layers\.", "(?!model)",
    r"^(model\.norm)$",
]  # fmt: skip
WORDS = [
    "|", "(", "a)", "a|b", "x]",
    "model", "layers", "mlp", "experts", "self_attn", "kv_b_proj", "gate_proj", "up_proj", "gate", "norm", "lm_head",
    "embed_tokens", "a", "b", "é", "größe", "ニ", "٣", "x y", "[", "$", "LM_Head",
]  # fmt: skip


def patterns(rng):
    yield from WHOLE
    for _ in range(600):
        yield rng.choice(HEADS) + rng.choice(NUMBERS) + rng.choice(MIDDLES) + rng.choice(TAILS)


def path(rng):
    """Mostly like a module's, sometimes any text without a newline; numbers as ModuleList writes them."""
    if rng.random() < 0.6:
        rest = [rng.choice(WORDS) for _ in range(rng.randrange(4))]
        return ".".join(["model", "layers", str(rng.choice([0, 1, 3, 5, 9, 10, 29, 30, 60, 61, 100, 12345])), *rest])
    parts = [str(rng.randrange(120)) if rng.random() < 0.3 else rng.choice(WORDS) for _ in range(rng.randrange(1, 6))]
    return rng.choice([".", ".", ".", "", "\u2028", "\x85"]).join(parts)


def test_the_same_paths_are_hit():
    seed = random.randrange(10**9)
    rng = random.Random(seed)
    paths = ["", "model", "model.norm", "lm_head", "modelXnorm", *(path(rng) for _ in range(400))]
    hits = 0
    for pattern in patterns(rng):
        searched = re.compile(pattern)
        name = whole_path(pattern)
        match = Match(re.compile(name.pattern), None, name.layers)
        for one in paths:
            expected = searched.search(one) is not None
            hits += expected
            assert match.hits(one, ()) == expected, (seed, pattern, name, one)
    assert hits > 5000


@pytest.mark.parametrize(
    ("pattern", "name", "layers"),
    [
        (r"^model\.layers\.(0|[1-9])\.", r"model\.layers\.[0-9]+\..*", "0-9"),
        (r"^model\.layers\.(5[6-9]|60)\.mlp$", r"model\.layers\.[0-9]+\.mlp", "56-60"),
        (r"^model\.layers\.([12])$", r"model\.layers\.[0-9]+", "1-2"),
        (r"^model\.layers\.[3456][0-9]\.(?!self_attn\.kv_b_proj).*$",
         r"model\.layers\.[0-9]+\.(?!self_attn\.kv_b_proj).*", "30-69"),
        (r"^model\.layers\..*\.mlp\.experts$", r"model\.layers\..*\.mlp\.experts", None),
        (r"^model.embed_tokens", "model.embed_tokens.*", None),
        ("(^model.norm)|(^lm_head)", "model.norm.*|lm_head.*", None),
        (r"layers\.1", r".*layers\.1.*", None),
        (r"^model\.layers\.(1)", r"model\.layers\.(1).*", None),  # also layers 10, 11, ..., as there
    ],
)  # fmt: skip
def test_the_result_can_be_read(pattern, name, layers):
    found = whole_path(pattern)
    assert (found.pattern, found.layers and str(found.layers)) == (name, layers)
