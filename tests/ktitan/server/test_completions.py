"""Text completions over HTTP; the model continues with the next byte, up to "z"."""

import pytest

from support.echo_model import EchoModel
from support.serving import joined, serving

PATH = "/v1/completions"


def texts(answer):
    assert answer.status == 200, answer.text
    return [choice["text"] for choice in answer.json["choices"]]


def test_text_and_ids_are_continued(echo):
    answer = echo.complete("at", model="default", max_tokens=3)
    assert answer.json["object"] == "text_completion"
    assert answer.json["choices"] == [{"index": 0, "text": "uvw", "logprobs": None, "finish_reason": "length"}]
    assert texts(echo.complete([ord("w")])) == ["xyz"]
    assert texts(echo.complete(["a", "m"], max_tokens=2, n=2)) == ["bc", "bc", "no", "no"]
    both = echo.complete([[97], [98, 99]], max_tokens=2)
    assert texts(both) == ["bc", "de"]
    assert both.json["usage"]["prompt_tokens"] == 3


def test_the_default_length_is_openais(echo):
    assert texts(echo.complete("!")) == ["\"#$%&'()*+,-./01"]


def test_a_stream_says_the_same(echo):
    for options in ({}, {"stop": "y"}, {"echo": True}, {"max_tokens": 1}):
        events = echo.stream(PATH, prompt="uv", stream_options={"include_usage": True}, **options)
        whole = echo.complete("uv", **options)
        assert joined(events, "text") == texts(whole)[0]
        assert events.data[-1]["usage"] == whole.json["usage"]
        assert events.data[-2]["choices"][0]["finish_reason"] == whole.json["choices"][0]["finish_reason"]
        assert events.raw[-1] == "[DONE]"


def test_echo_puts_the_prompt_in_front(echo):
    assert texts(echo.complete("wx", echo=True)) == ["wxyz"]
    assert texts(echo.complete([119, 120], echo=True, n=2)) == ["wxyz"] * 2


def test_log_probabilities_in_the_older_shape(echo):
    logprobs = echo.complete("w", logprobs=2).json["choices"][0]["logprobs"]
    assert (logprobs["tokens"], logprobs["text_offset"]) == (["x", "y", "z"], [0, 1, 2])
    assert logprobs["token_logprobs"] == [pytest.approx(-0.032, abs=1e-3)] * 3
    assert [max(top, key=top.get) for top in logprobs["top_logprobs"]] == ["x", "y", "z"]
    chunks = echo.stream(PATH, prompt="w", logprobs=2).data
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert [one["text_offset"] for one in found] == [[0], [1], [2]]


def test_suffix_is_refused_without_tokens_for_it(echo):
    answer = echo.complete("a", suffix="b")
    assert (answer.status, answer.json["error"]["param"]) == (400, "suffix")


STYLES = [
    (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), "<|fim_pad|>"),
    (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<file_sep>"),
    (("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"), None),
    (("▁<PRE>", "▁<SUF>", "▁<MID>"), "▁<EOT>"),
]


@pytest.mark.parametrize(("marks", "end"), STYLES)
def test_suffix_fills_the_middle(rig, marks, end):
    tokenizer = rig.byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [*marks, *([end] if end else [])]})
    prefix, suffix, middle = (tokenizer.convert_tokens_to_ids(mark) for mark in marks)
    model = EchoModel(vocabulary=300)
    bias = {str(tokenizer.convert_tokens_to_ids(end) if end else 258): 100}
    with serving(model, tokenizer) as client:
        answer = client.complete("ab", suffix="yz", logit_bias=bias)
        assert model.seen == [prefix, 97, 98, suffix, 121, 122, middle]
        assert answer.json["choices"][0]["finish_reason"] == "stop"
        assert texts(answer) == [""]
