"""Whatever a client gets wrong is a 4xx in OpenAI's shape that names the field."""

import json
import random

import pytest

from ktitan.server import service

from support.echo_model import EchoModel
from support.serving import serving

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "x"}]

FIELDS = [
    ("messages", []),
    ("messages", 5),
    ("messages", [{"role": "banana", "content": "x"}]),
    ("messages", [{"role": "user", "content": 5}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages", [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
    ("messages", [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", "5"),
    ("max_completion_tokens", 2.5),
    ("temperature", -0.1),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_p", 1.5),
    ("top_k", -1),
    ("min_p", 2),
    ("repetition_penalty", 0),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("n", 0),
    ("n", 10**9),
    ("seed", 2**64),
    ("seed", 1.5),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", 7),
    ("stop", ["x"] * 65),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"99999": 1}),
    ("logprobs", 2),
    ("top_logprobs", 3),
    ("stream_options", {"include_usage": True}),
    ("response_format", {"type": "json_schema", "json_schema": {}}),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "alloy"}),
    ("guided_json", {}),
    ("chat_template_kwargs", {"chat_template": "{{ 1 }}"}),
    ("chat_template_kwargs", {"tokenize": True}),
    ("chat_template_kwargs", []),
]


def refused(answer, param, status=400):
    assert answer.status == status, answer.text
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").partition("[")[0] == (param or ""), error
    return error


@pytest.mark.parametrize(("name", "value"), FIELDS)
def test_a_wrong_field_is_named(echo, name, value):
    refused(echo.request("POST", CHAT, {"messages": USER, name: value}), name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", []),
        ("prompt", 5),
        ("prompt", [-1]),
        ("prompt", [2**70]),
        ("prompt", [[1], []]),
        ("prompt", ["x"] * 65),
        ("best_of", 2),
        ("logprobs", True),
        ("logprobs", 21),
        ("suffix", 3),
    ],
)
def test_a_wrong_field_of_a_completion_is_named(echo, name, value):
    refused(echo.request("POST", COMPLETE, {"prompt": "x", name: value}), name)


def test_answers_of_one_request_are_bounded(echo):
    refused(echo.request("POST", COMPLETE, {"prompt": ["x"] * 64, "n": 3}), "n")


def test_ids_outside_the_vocabulary_are_refused(echo):
    assert "264" in refused(echo.complete([1, 264]), "prompt")["message"]
    refused(echo.request("POST", COMPLETE, {"prompt": [1, 2**31 - 1], "stream": True}), "prompt")
    refused(echo.request("POST", CHAT, {"messages": USER, "stream": True, "logit_bias": {"264": 1}}), "logit_bias")


def test_all_wrong_fields_are_told_at_once(echo):
    error = refused(echo.request("POST", CHAT, {"messages": USER, "n": 0, "top_p": 7, "temperature": -1}), "n")
    assert all(name in error["message"] for name in ("n:", "top_p", "temperature"))


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"messages": [], "n": ' + b"9" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'"text"',
        b"null",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "\\ud800", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "model": "\\udfff"}',
    ],
)
def test_bodies_that_are_no_request(echo, body):
    answer = echo.request("POST", CHAT, body)
    assert answer.status in (400, 404), answer.text
    assert answer.json["error"]["message"]


def test_only_json_is_taken_so_that_a_foreign_page_cannot_post(echo):
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        body = json.dumps({"messages": USER}).encode()
        error = refused(echo.request("POST", CHAT, body, {"Content-Type": kind}), None)
        assert "application/json" in error["message"]


def test_unknown_models_and_paths_and_methods(echo):
    for name in ("gpt-4o", "", "titan "):
        error = refused(echo.chat("x", model=name), "model", 404)
        assert error["code"] == "model_not_found"
    assert refused(echo.get("/v1/models/none"), "model", 404)["message"].count("tiny-echo")
    refused(echo.get("/v1/nothing"), None, 404)
    answer = echo.get(CHAT)
    refused(answer, None, 405)
    assert answer.headers["allow"] == "POST"


def test_a_prompt_that_cannot_fit_is_refused_before_work_with_what_fits(echo):
    limit = echo.service.context.tokens
    passes = len(echo.model.passes)
    error = refused(echo.complete("x" * limit), "prompt")
    assert error["code"] == "context_length_exceeded"
    assert f"{limit} tokens; at most {limit - 1} fit" in error["message"]
    refused(echo.chat("x" * random.randrange(limit, limit + 500)), "messages")
    assert len(echo.model.passes) == passes
    fits = echo.complete("x" * (limit - 1), max_tokens=9)
    assert (fits.json["choices"][0]["text"], fits.json["choices"][0]["finish_reason"]) == ("y", "length")


def test_a_text_far_too_long_is_refused_by_its_beginning(echo, monkeypatch):
    limit = echo.service.context.tokens
    encoded = []
    encode = service.encode_text
    monkeypatch.setattr(
        service, "encode_text", lambda tokenizer, text: encoded.append(len(text)) or encode(tokenizer, text)
    )
    for path, body, field in (
        (COMPLETE, {"prompt": "word " * 1_900_000}, "prompt"),
        (CHAT, echo.chat_body("word " * 1_900_000), "messages"),
    ):
        error = refused(echo.request("POST", path, body), field)
        assert error["code"] == "context_length_exceeded"
        assert f"at most {limit - 1} fit" in error["message"]
    assert encoded == [8 * limit] * 2


def test_long_words_are_encoded_whole(rig):
    tokenizer = rig.byte_tokenizer()
    tokenizer.add_tokens(["long" * 30])
    with serving(EchoModel(positions=100, vocabulary=300), tokenizer) as client:
        assert client.complete("long" * 30 * 99, max_tokens=1).status == 200
        refused(client.complete("long" * 30 * 100), "prompt")


def test_no_room_for_nothing_but_a_smaller_answer(echo):
    limit = echo.service.context.tokens
    answer = echo.complete("x" * (limit - 2), max_tokens=10**9, ignore_eos=True)
    assert (len(answer.json["choices"][0]["text"]), answer.json["choices"][0]["finish_reason"]) == (2, "length")


def test_a_fault_of_the_engine_is_a_500_and_the_next_request_works(echo):
    for body in (echo.chat_body("abc"), echo.chat_body("abc", stream=True)):
        echo.model.fault = RuntimeError("a secret of the engine")
        answer = echo.request("POST", CHAT, body)
        assert "secret" not in answer.text
        assert "engine_failed" in answer.text
        assert answer.status == (200 if body.get("stream") else 500)
        assert "[DONE]" not in answer.text
    assert echo.chat("abc").json["choices"][0]["message"]["content"] == "abc"
