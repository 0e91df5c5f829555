"""The official Python client drives the server: every option, streaming and not."""

import asyncio

import pytest

from support.echo_model import EchoModel
from support.serving import serving

openai = pytest.importorskip("openai")

OPTIONS = {
    "temperature": 0.0,
    "top_p": 0.9,
    "n": 2,
    "seed": 7,
    "stop": ["END", "\nUser:"],
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {"65": -100},
    "user": "me",
}
EXTRA = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.01, "ignore_eos": False}
CHAT_OPTIONS = {
    **OPTIONS,
    "max_completion_tokens": 40,
    "logprobs": True,
    "top_logprobs": 2,
    "response_format": {"type": "text"},
    "tool_choice": "auto",
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "parallel_tool_calls": True,
    "reasoning_effort": "low",
    "store": False,
    "metadata": {"a": "b"},
    "service_tier": "auto",
}
CHINESE = [{"role": "system", "content": "请用中文"}, {"role": "user", "content": "你好,泰坦 END 之后"}]


@pytest.fixture(scope="module")
def client(echo):
    with openai.OpenAI(base_url=f"{echo.url}/v1", api_key="unused", max_retries=0, timeout=20) as made:
        yield made


def test_a_chinese_prompt_streams(client):
    stream = client.chat.completions.create(model="titan", messages=CHINESE, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "你好,泰坦 END 之后"


def test_chat_with_every_option(client):
    options = {**CHAT_OPTIONS, "extra_body": {**EXTRA, "chat_template_kwargs": {"enable_thinking": False}}}
    whole = client.chat.completions.create(model="titan", messages=CHINESE, **options)
    assert [choice.message.content for choice in whole.choices] == ["你好,泰坦 "] * 2
    assert {choice.finish_reason for choice in whole.choices} == {"stop"}
    raw = b"".join(bytes(entry.bytes) for entry in whole.choices[0].logprobs.content)
    assert raw.decode() == "你好,泰坦 "
    stream = client.chat.completions.create(
        model="titan", messages=CHINESE, stream=True, stream_options={"include_usage": True}, **options
    )
    *chunks, last = stream
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == ["你好,泰坦 "] * 2
    assert last.usage == whole.usage
    assert whole._request_id == whole.id


def test_reasoning_content(client):
    messages = [{"role": "user", "content": "<think>\nwhy</think>\nso"}]
    message = client.chat.completions.create(model="titan", messages=messages).choices[0].message
    assert (message.reasoning_content, message.content) == ("why", "so")


def test_completions_with_every_option(client):
    options = {**OPTIONS, "max_tokens": 9, "extra_body": EXTRA}
    whole = client.completions.create(model="titan", prompt=["uv", "wx"], logprobs=2, best_of=2, **options)
    assert [choice.text for choice in whole.choices] == ["wxyz"] * 2 + ["yz"] * 2
    assert whole.choices[0].logprobs.tokens == list("wxyz")
    stream = client.completions.create(model="titan", prompt=[117, 118], echo=True, stream=True, **options)
    texts = ["", ""]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["uvwxyz"] * 2


def test_the_stream_helper_accumulates(client):
    with client.chat.completions.stream(model="titan", messages=CHINESE) as stream:
        assert stream.get_final_completion().choices[0].message.content == "你好,泰坦 END 之后"


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny-echo"]
    assert client.models.retrieve("titan").id == "tiny-echo"


def test_errors_become_the_clients_own(client, echo):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=CHINESE)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.chat.completions.create(
            model="titan", messages=CHINESE, response_format={"type": "json_schema", "json_schema": {"name": "x"}}
        )
    echo.model.fault = RuntimeError("broken")
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="titan", messages=CHINESE)
    echo.model.fault = RuntimeError("broken")
    with pytest.raises(openai.APIError, match="RuntimeError"):
        list(client.chat.completions.create(model="titan", messages=CHINESE, stream=True))


def test_keys_large_bodies_and_closing_a_stream(rig):
    model = EchoModel()
    with serving(model, rig.byte_tokenizer(), api_keys=("right",)) as served:
        url = f"{served.url}/v1"
        with (
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as wrong,
            pytest.raises(openai.AuthenticationError),
        ):
            wrong.models.list()
        with openai.OpenAI(base_url=url, api_key="right", max_retries=0) as right:
            with pytest.raises(openai.APIStatusError) as caught:
                right.completions.create(model="titan", prompt="x" * 50_000_000)
            assert caught.value.status_code == 413
            model.delay = 0.005
            stream = right.completions.create(model="titan", prompt="a", max_tokens=4000, stream=True)
            next(iter(stream))
            stream.close()
            served.wait_idle()


def test_many_at_once_with_the_async_client(echo):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{echo.url}/v1", api_key="x", timeout=20) as client:
            messages = [[{"role": "user", "content": f"number {number}"}] for number in range(12)]
            calls = [client.chat.completions.create(model="titan", messages=one) for one in messages]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    assert asyncio.run(ask()) == [f"number {number}" for number in range(12)]
