"""What the chat says of streams: of the prompt and the answer apart, from counters whose growth is known."""

import io
from itertools import pairwise
from types import SimpleNamespace

import pytest
from rich.console import Console

from ktitan.local_chat import streaming
from ktitan.local_chat.options import ChatOptions
from ktitan.local_chat.session import Session
from ktitan.local_chat.streaming import Watch, block

MIB = 1 << 20
AT_START = {"demands": 8, "hits": 0, "io": {"read_bytes": MIB}}
AFTER_PROMPT = {
    **{"demands": 108, "hits": 25, "misses": 75, "steps": 1, "stall_ns": 10**9, "policy": 3, "evictions": 7},
    "io": {"read_bytes": 41 * MIB, "busy_ns": 16 * 10**8, "wait_ns": 10**9},
}
AT_END = {
    **{"demands": 208, "hits": 120, "misses": 80, "steps": 6, "stall_ns": 15 * 10**8, "policy": 3, "evictions": 9},
    **{"predicted": 50, "predicted_right": 40, "predicted_absent": 20, "predicted_absent_right": 12, "passed": 2},
    **{"guesses": 10, "guess_bytes": 10 * MIB, "guesses_used": 6, "guesses_late": 2, "guesses_wasted": 3},
    **{"guess_level": 4, "guess_steps": 5, "guess_gain_ns": 1_250_000, "policy_changes": 1},
    "io": {"read_bytes": 61 * MIB, "busy_ns": 24 * 10**8, "wait_ns": 15 * 10**8},
}
LINES = [
    "prompt: 25 % of 100 hit | 4.0 MiB read a token | waited 1.00 s (50 %) | drive 25.0 MiB/s, busy 80 %, "
    "0.60 s beside computing",
    "answer: 95 % of 100 hit (6 by guesses) | 4.0 MiB read a token | waited 0.50 s (50 %) | "
    "drive 25.0 MiB/s, busy 80 %, 0.30 s beside computing",
    "prefetch: on, up to 4 a layer | foresaw 80 % of experts, 60 % of misses | 10 guesses, 6 used (2 late), "
    "30 % wasted (3.0 MiB) | last measured gain 1.25 ms a step",
    "policy: decayed-lfu, changed 1 times | 9 made room, 2 passed through",
]


def handle(*looks):
    """Stands for `model.ktitan`: each look at the counters gives the next ones, then the last ones again."""
    left = list(looks)
    return SimpleNamespace(store_stats=lambda: left.pop(0) if len(left) > 1 else left[0])


@pytest.fixture
def clock(monkeypatch):
    times = SimpleNamespace(now=100.0)
    monkeypatch.setattr(streaming, "time", SimpleNamespace(monotonic=lambda: times.now))
    return times


def test_prompt_and_answer_apart(clock):
    watch = Watch(handle(AT_START, AFTER_PROMPT, AT_END))
    watch.see_prompt(0, 10)
    watch.see_prompt(5, 10)
    clock.now += 2
    watch.see_prompt(10, 10)
    clock.now += 1
    watch.end()
    assert block(watch, SimpleNamespace(prompt_tokens=10, decode_steps=5)) == LINES
    assert streaming.short_text(watch.whole()) == "60 % hits, 60.0 MiB read at 25.0 MiB/s"


def test_an_answer_that_ends_in_its_prompt_has_no_second_line(clock):
    watch = Watch(handle(AT_START, AFTER_PROMPT))
    clock.now += 2
    watch.end()
    lines = block(watch, SimpleNamespace(prompt_tokens=5, decode_steps=0))
    assert [line.split(":")[0] for line in lines] == ["prompt", "prefetch", "policy"]
    assert "8.0 MiB read a token" in lines[0] and lines[1] == "prefetch: off"


def session(rig, looks, **options):
    model = rig.chain_model(dict(pairwise([ord("\n"), *b"ok!", 258])))
    model.ktitan = handle(*looks)
    model.ktitan.stats = lambda: {"resident_bytes": {}}
    errors = io.StringIO()
    console = Console(file=errors, markup=False, highlight=False, soft_wrap=True)
    return Session(
        model, rig.byte_tokenizer(), ChatOptions("m", stream={"max_new_tokens": 9}, **options), console
    ), errors


def test_the_block_follows_an_answer_where_it_was_asked_for(rig, capsys):
    chat, errors = session(rig, (AT_START, AFTER_PROMPT, AT_END), stats=True)
    chat.run_once("hi")
    told = errors.getvalue().splitlines()
    assert [line.split(":")[0] for line in told[-4:]] == ["prompt", "answer", "prefetch", "policy"]
    assert told[-5] == "prompt: 0 of 21 tokens kept from before, 21 read"
    assert told[-6].endswith("60 % hits, 60.0 MiB read at 25.0 MiB/s")
    assert capsys.readouterr().out == "ok!\n"


def test_stats_in_the_chat_shows_it_once_there_was_an_answer(rig, capsys):
    chat, errors = session(rig, (AT_START, AFTER_PROMPT, AT_END))
    chat._command("/stats")
    assert "prefetch" not in errors.getvalue()
    chat.turn("hi")
    assert "prefetch" not in errors.getvalue()
    chat._command("/stats")
    assert "policy: decayed-lfu" in errors.getvalue()
