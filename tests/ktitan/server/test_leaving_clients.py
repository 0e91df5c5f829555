"""A client who leaves: queued, in the prompt, in mid answer, streaming or not. The work ends within a step."""

import json
import os
import random
import socket
import threading
import time

import pytest

from support.serving import reset, wait_for

LONG = {"max_tokens": 4000, "ignore_eos": True}


def passes_after(echo, leave):
    """How many forward passes still begin once the client has left."""
    leave()
    before = len(echo.model.passes)
    echo.wait_idle()
    return len(echo.model.passes) - before


def read_until(raw, mark):
    data = b""
    while mark not in data:
        data += raw.recv(65536)
    return data


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
@pytest.mark.parametrize("stream", [True, False])
def test_in_mid_answer(echo, leave, stream):
    echo.model.delay = 0.02
    raw = echo.open(echo.chat_body("abcdefgh", stream=stream, **LONG))
    done = len(echo.model.passes)
    wait_for(lambda: len(echo.model.passes) > done + 3)
    assert passes_after(echo, lambda: leave(raw)) <= 2
    echo.model.delay = 0.0
    assert echo.chat("next").json["choices"][0]["message"]["content"] == "next"


@pytest.mark.parametrize("stream", [True, False])
def test_in_a_long_prompt(echo, stream):
    echo.model.delay = 0.03
    done = len(echo.model.passes)
    raw = echo.open(echo.chat_body("x" * 3900, stream=stream))  # 61 chunks of 64 tokens
    wait_for(lambda: len(echo.model.passes) > done + 2)
    assert passes_after(echo, raw.close) <= 2
    assert sum(echo.model.passes[done:]) < 3900 / 2


def test_the_prompt_is_told_in_comments(echo):
    comments = echo.stream(**echo.chat_body("x" * 200)).comments
    progress = [tuple(map(int, one.split()[1].split("/"))) for one in comments if one.startswith("prefill")]
    total = progress[-1][1]
    assert [done for done, _ in progress] == [*range(64, total, 64), total]
    assert {one[1] for one in progress} == {total}


def test_a_silent_stream_has_heartbeats(echo):
    echo.model.delay = 0.2
    assert "working" in echo.stream(**echo.chat_body("ab")).comments


def test_while_queued(echo):
    echo.model.delay = 0.02
    first = echo.open(echo.chat_body("ab", stream=True, **LONG))
    wait_for(lambda: echo.service.engine.running is not None)
    second = echo.open(echo.chat_body("cd", stream=True))
    assert b": queued behind 1" in read_until(second, b"queued")
    third = echo.open(echo.chat_body("ef"))
    wait_for(lambda: len(echo.service.engine.queue) == 2)
    third.close()
    wait_for(lambda: len(echo.service.engine.queue) == 1)
    second.close()
    wait_for(lambda: len(echo.service.engine.queue) == 0)
    assert echo.service.engine.running is not None
    first.close()


def test_a_reader_who_stops_reading_does_not_hold_the_model(echo):
    raw = echo.open(echo.chat_body("ab", stream=True, max_tokens=600, ignore_eos=True))
    echo.wait_idle()
    data = read_until(raw, b"[DONE]")
    assert data.count(b'"finish_reason":"length"') == 1
    raw.close()


def test_many_who_leave_at_random_and_the_answers_between_are_clean(echo):
    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(echo.service.engine.queue)

    echo.chat("first")
    before = held()
    echo.model.delay = 0.001
    for number in range(40):
        body = echo.chat_body("x" * random.randrange(1, 300), stream=random.random() < 0.7, max_tokens=200)
        raw = echo.open(body)
        time.sleep(random.random() * 0.02)
        random.choice([socket.socket.close, reset])(raw)
        if number % 4 == 0:
            text = f"answer {number}"
            assert echo.chat(text).json["choices"][0]["message"]["content"] == text
    echo.wait_idle()
    wait_for(lambda: held() <= before)


def test_a_request_that_is_cut_in_its_body(echo):
    raw = socket.create_connection(("127.0.0.1", echo.port))
    body = json.dumps(echo.chat_body("x")).encode()
    raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
    raw.sendall(f"Content-Length: {len(body)}\r\n\r\n".encode() + body[:-5])
    raw.close()
    assert echo.chat("x").status == 200
