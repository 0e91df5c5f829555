"""Chat completions over HTTP, with a model that echoes the last message."""

import random

import pytest

from support.echo_model import EchoModel
from support.serving import joined, serving

EMOJI = ["👨‍👩‍👧", "ñ and ñ", "한국", "😸 中文"]


def content(answer):
    assert answer.status == 200, answer.text
    return answer.json["choices"][0]["message"]["content"]


def test_whole_answer_has_openais_shape(echo):
    answer = echo.chat("Hello, 世界", model="titan")
    body = answer.json
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny-echo"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, 世界", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage = body["usage"]
    assert usage["completion_tokens"] == len("Hello, 世界".encode())
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert answer.headers["x-request-id"] == body["id"]


def test_stream_begins_with_the_role_and_ends_with_the_reason(echo):
    events = echo.stream(**echo.chat_body("abc"))
    choices = [chunk["choices"][0] for chunk in events.data]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"] for choice in choices[1:-1]] == [{"content": letter} for letter in "abc"]
    assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, "stop")
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    assert events.raw[-1] == "[DONE]"
    assert len({chunk["id"] for chunk in events.data}) == 1
    assert not any("usage" in chunk for chunk in events.data)


@pytest.mark.parametrize("options", [{}, {"max_tokens": 2}, {"stop": "c"}])
def test_usage_comes_once_where_it_is_asked_for_and_is_that_of_the_whole_answer(echo, options):
    whole = echo.chat("abcd", **options).json
    events = echo.stream(**echo.chat_body("abcd", stream_options={"include_usage": True}, **options))
    *chunks, last = events.data
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(chunk["usage"] is None for chunk in chunks)
    assert joined(events) == whole["choices"][0]["message"]["content"]
    for without in ({}, {"include_usage": False}):
        events = echo.stream(**echo.chat_body("abcd", stream_options=without, **options))
        assert all("usage" not in chunk and chunk["choices"] for chunk in events.data)


@pytest.mark.parametrize("name", ["titan", "ktitan", "default", "tiny-echo", "/models/tiny-echo", None])
def test_the_model_answers_to_its_names(echo, name):
    assert content(echo.chat("x", **({"model": name} if name else {}))) == "x"


@pytest.mark.parametrize("text", EMOJI)
def test_characters_are_never_cut(echo, text):
    events = echo.stream(**echo.chat_body(text))
    assert joined(events) == content(echo.chat(text)) == text
    assert "\ufffd" not in "".join(events.raw)


@pytest.mark.parametrize("text", ["a\udc00", "😸"])
def test_an_answer_that_ends_within_a_character_loses_nothing(echo, text):
    if text.startswith("a"):
        assert echo.chat(text).status == 400  # half of a surrogate pair is no text
        return
    cut = {"max_tokens": 3}
    assert content(echo.chat(text, **cut)) == joined(echo.stream(**echo.chat_body(text, **cut))) == "\ufffd"


@pytest.mark.parametrize(
    ("text", "stop", "left"),
    [
        ("one\nUser: two", ["\nUser:"], "one"),
        ("say hello", "ell", "say h"),
        ("one\nUse", "\nUser:", "one\nUse"),
        ("xxabcabc", ["abc", "ab"], "xx"),
        ("xxabcabc", ["ab", "abc"], "xx"),
        ("no such", ["hi"], "no such"),
        ("a b c d", ["1", "2", "3", "4", "5", "d"], "a b c "),
    ],
)
def test_stop_strings_end_the_text_before_them(echo, text, stop, left):
    whole = echo.chat(text, stop=stop)
    events = echo.stream(**echo.chat_body(text, stop=stop))
    assert content(whole) == joined(events) == left
    assert whole.json["choices"][0]["finish_reason"] == "stop"


THOUGHTS = [
    ("<think>\nwhy not</think>\n\nyes", {}, "why not", "yes"),
    ("<think>\nwhy not</think>\n\nyes", {"enable_thinking": True}, "why not", "yes"),
    ("plain </think> text", {}, "", "plain </think> text"),
    ("<think>\na</think>b</think>c<think>", {}, "a", "b</think>c<think>"),
    ("<think>\n never ends</thi", {"enable_thinking": True}, "never ends</thi", ""),
    ("<thinker>", {}, "", "<thinker>"),
    ("<thi", {}, "", "<thi"),
    ("<think></think>x", {}, "", "x"),
]


@pytest.mark.parametrize(("text", "variables", "reasoning", "answer"), THOUGHTS)
def test_reasoning_is_told_apart_alike_with_and_without_a_stream(echo, text, variables, reasoning, answer):
    whole = echo.chat(text, chat_template_kwargs=variables)
    events = echo.stream(**echo.chat_body(text, chat_template_kwargs=variables))
    message = whole.json["choices"][0]["message"]
    assert (message.get("reasoning_content", ""), message["content"]) == (reasoning, answer)
    assert (joined(events, "reasoning_content"), joined(events)) == (reasoning, answer)
    counted = whole.json["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert bool(counted) == bool(reasoning) or not reasoning


def test_text_parts_system_and_developer_roles(echo):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert content(echo.chat([{"role": "developer", "content": "d"}, {"role": "user", "content": parts}])) == "ab"
    two = [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, {"role": "user", "content": "u"}]
    assert content(echo.chat(two)) == "u"


@pytest.mark.parametrize("with_null", [True, False])
def test_a_tool_call_turn_survives(echo, with_null):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    asks = {"role": "assistant", "tool_calls": [call], **({"content": None} if with_null else {})}
    messages = [{"role": "user", "content": "u"}, asks]
    # The last message is echoed, so the call is seen as the template wrote it: JSON text became an object.
    assert content(echo.chat(messages)) == '[f {"x": 1}]'
    messages.append({"role": "tool", "tool_call_id": "1", "content": "42"})
    assert content(echo.chat(messages)) == "42"


def test_an_end_mark_ends_the_answer_and_ignore_eos_does_not(echo):
    marked = echo.chat("ab", max_tokens=7, ignore_eos=True)
    assert content(marked) == "ababa"  # the mark is a token, but no text
    assert marked.json["choices"][0]["finish_reason"] == "length"
    assert marked.json["usage"]["completion_tokens"] == 7
    assert content(echo.chat("ab", max_tokens=7)) == "ab"


def test_several_answers_each_with_an_index_of_its_own(echo):
    whole = echo.chat("abc", n=3)
    assert [choice["index"] for choice in whole.json["choices"]] == [0, 1, 2]
    assert whole.json["usage"]["completion_tokens"] == 9
    events = echo.stream(**echo.chat_body("abc", n=3))
    assert [joined(events, index=index) for index in range(3)] == ["abc"] * 3
    ends = [choice["finish_reason"] for chunk in events.data for choice in chunk["choices"] if choice["finish_reason"]]
    assert ends == ["stop"] * 3


def test_sampling_follows_the_seed_and_greedy_limits_do_not(echo):
    hot = {"temperature": 4.0, "max_tokens": 24, "ignore_eos": True, "top_logprobs": 0, "logprobs": True}
    tokens = [
        [one["bytes"] for one in echo.chat("abc", seed=seed, **hot).json["choices"][0]["logprobs"]["content"]]
        for seed in (1, 1, 2, -1)
    ]
    assert tokens[0] == tokens[1]
    assert len({str(one) for one in tokens}) == 3
    for limit in (
        {"temperature": 0, "top_p": 0, "top_k": 0},
        {"temperature": 1e-8},
        {"top_p": 0, "temperature": 1},
        {"min_p": 1},
    ):
        assert [content(echo.chat("abc", seed=seed, **limit)) for seed in (1, 2, 2**63)] == ["abc"] * 3
    answers = [choice["message"]["content"] for choice in echo.chat("abc", n=2, seed=5, **hot).json["choices"]]
    assert answers[0] == content(echo.chat("abc", seed=5, **hot))
    assert answers[1] == content(echo.chat("abc", seed=6, **hot))


def test_bias_and_penalties_reach_the_choice(echo):
    assert content(echo.chat("abc", logit_bias={str(ord("x")): 100}, max_tokens=3)) == "xxx"
    assert (
        content(echo.chat("aaaaaaaa", frequency_penalty=2, logit_bias={str(ord("b")): 5}, temperature=0)) == "aaababab"
    )


def test_log_probabilities_are_those_of_the_model(echo):
    body = echo.chat_body("añ", logprobs=True, top_logprobs=2, temperature=0.01, logit_bias={"258": 1})
    entries = echo.request("POST", "/v1/chat/completions", body).json["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "añ"
    assert [entry["token"] for entry in entries] == ["a", "bytes:\\xc3", "bytes:\\xb1"]
    for entry in entries:
        assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]
        # One logit of 9 among 263 of 0.
        assert entry["logprob"] == pytest.approx(-0.0320, abs=1e-3)
        assert len(entry["top_logprobs"]) == 2
    streamed = [
        entry
        for chunk in echo.stream(**body).data
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == entries


def test_tokens_of_a_stop_string_have_no_log_probabilities(echo):
    answer = echo.chat("one STOP two", stop="STOP", logprobs=True).json["choices"][0]
    assert "".join(entry["token"] for entry in answer["logprobs"]["content"]) == answer["message"]["content"] == "one "


def test_fields_that_nobody_knows_are_ignored_and_named(echo):
    answer = echo.chat("x", temprature=3, user="me", tool_choice="auto", min_tokens=0)
    assert answer.headers["x-ktitan-ignored"] == "temprature"
    assert "x-ktitan-ignored" not in echo.chat("x", user="me").headers


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4}])
def test_greedy_answers_equal_ktitan_stream(rig, changes):
    import ktitan

    model, tokenizer = rig.random_model(random.randrange(10**6), eos_token_id=None, **changes), rig.byte_tokenizer()
    messages = [{"role": "user", "content": f"say {random.random()}"}]
    expected = "".join(ktitan.stream(model, tokenizer, messages, max_new_tokens=40, greedy=True))
    with serving(model, tokenizer, chunk_tokens=16) as client:
        body = {"messages": messages, "max_tokens": 40, "temperature": 0}
        assert content(client.request("POST", "/v1/chat/completions", body)) == expected
        assert joined(client.stream(**body)) == expected


def test_an_answer_does_not_depend_on_those_before_it(rig):
    model, tokenizer = rig.random_model(random.randrange(10**6), eos_token_id=None), rig.byte_tokenizer(None)
    prompts = [bytes(random.randrange(97, 123) for _ in range(size)).decode() for size in (30, 30, 70)]
    runs = [prompts[0], prompts[0], prompts[0] + prompts[1], prompts[0][:-1], prompts[2], prompts[0]]
    options = {"max_tokens": 12, "temperature": 0, "logprobs": 1}

    def ask(client, prompt):
        answer = client.complete(prompt, **options).json
        (choice,), cached = answer["choices"], answer["usage"].pop("prompt_tokens_details")["cached_tokens"]
        logprobs = choice["logprobs"]["token_logprobs"]
        return (choice["text"], answer["usage"]), logprobs, cached

    with serving(model, tokenizer) as client, serving(model, tokenizer, prompt_cache=False) as forgetful:
        for prompt, expected in zip(runs, (0, 29, 30, 28, 0, 29), strict=True):
            (warm, near, cached), (cold, logprobs, none) = ask(client, prompt), ask(forgetful, prompt)
            assert (warm, cached, none) == (cold, expected, 0)
            assert near == pytest.approx(logprobs, abs=1e-4)  # torch rounds otherwise for other numbers of tokens
        text = client.get("/metrics").text
        assert "ktitan_prompt_cached_tokens_total 116.0" in text
        assert "ktitan_prompt_cache_prompts 2.0" in text


def test_several_answers_read_their_prompt_once(rig):
    model, tokenizer = rig.random_model(random.randrange(10**6), eos_token_id=None), rig.byte_tokenizer(None)
    ran = []
    model.register_forward_pre_hook(lambda _, __, given: ran.append(given["input_ids"].shape[1]), with_kwargs=True)
    with serving(model, tokenizer) as client:
        usage = client.complete("x" * 50, max_tokens=5, n=3, seed=1, temperature=1).json["usage"]
        assert (usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]) == (0, 50)
        assert [tokens for tokens in ran if tokens > 1] == [50]


def test_end_marks_of_config_and_tokenizer_add_up(rig):
    model = EchoModel()
    model.generation_config.eos_token_id = [259, ord("7")]
    with serving(model, rig.byte_tokenizer()) as client:
        answer = client.chat("ab7cd")
        assert content(answer) == "ab"
        assert answer.json["choices"][0]["finish_reason"] == "stop"
        assert content(client.chat("xyz")) == "xyz"
