"""Reasoning told apart from the answer, however the pieces are cut; tags that are special tokens; the unit of text."""

import random

import pytest

from ktitan.api import Sampling, Token
from ktitan.server.answer import AnswerText, Choice
from ktitan.server.reasoning import ReasoningSplit, opens_reasoning, thinks

CASES = [
    ("<think>why\n</think>\n\nso", False, "why", "so"),
    ("  <think>why</think>so", False, "why", "so"),
    ("why</think>so </think>", True, "why", "so </think>"),
    ("<think>why</think>so", True, "why", "so"),
    ("so </think> it is", False, "", "so </think> it is"),
    ("a < b and </thi", True, "a < b and </thi", ""),
    (" so ", False, "", " so "),
    ("<thin", False, "", "<thin"),
    ("<thin", True, "<thin", ""),
    ("one  two \n\n three </think> \n", True, "one  two \n\n three", ""),
    ("", True, "", ""),
]


def cut(text):
    """`text` in pieces of random lengths."""
    while text:
        size = random.randrange(1, 6)
        yield text[:size]
        text = text[size:]


@pytest.mark.parametrize(("text", "opened", "reasoning", "answer"), CASES)
def test_split_does_not_depend_on_the_pieces(text, opened, reasoning, answer):
    for pieces in ([text], list(text), *(cut(text) for _ in range(8))):
        split = ReasoningSplit(opened)
        parts = [split.push(piece) for piece in pieces] + [split.finish()]
        assert ("".join(part[0] for part in parts), "".join(part[1] for part in parts)) == (reasoning, answer)


def test_what_opens_and_who_thinks(rig):
    assert opens_reasoning("<|assistant|><think>\n")
    assert not opens_reasoning("<think>\n\n</think>\n\n")
    plain = rig.byte_tokenizer()
    assert not thinks(plain)
    assert thinks(rig.byte_tokenizer("{# </think> #}"))
    plain.add_tokens(["</think>"])
    assert thinks(plain)


@pytest.mark.parametrize("special", [True, False])
def test_tags_that_are_tokens_split_as_tags_that_are_text(rig, special):
    tokenizer = rig.byte_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=special)
    ids = tokenizer("<think>why</think>so")["input_ids"]
    assert len(ids) == 7
    choice = Choice([1], 9, Sampling(greedy=True), likeliest=0, splits=True)
    answer = AnswerText(tokenizer, choice, 0)
    deltas = [answer.push(Token(one, -1.0)) for one in ids] + [answer.finish()]
    found = [delta for delta in deltas if delta]
    assert "".join(delta.reasoning for delta in found) == "why"
    assert "".join(delta.text for delta in found) == "so"
    assert [token.id for delta in found for token in delta.tokens] == ids
    assert answer.reasoning_tokens == 4
