"""From the command line to the calls of the api, and a real model from its folder to its answer."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import ktitan.api
from ktitan.local_chat.__main__ import app
from ktitan.tiers.trace import load_trace

LOAD = {"gguf_path": None, "rules": "auto", "device": None, "dtype": "auto", "budget": None, "context": None}
LOAD |= {"cache": None, "kv": None, "profile": None}
STREAM = {
    "temperature": None,
    "top_p": None,
    "top_k": None,
    "min_p": None,
    "repetition_penalty": None,
    "seed": None,
    "greedy": None,
    "max_new_tokens": 1000,
    "ignore_eos": False,
    "chunk_tokens": None,
    "prompt_cache": "keeps 1",
    "context_tokens": None,
}

LENGTHS = {"max_new_tokens": 7, "ignore_eos": True, "chunk_tokens": 9, "opening": "<think>\n"}


@pytest.fixture
def calls(monkeypatch):
    """What the chat asks of the api: load's model and options, stream's options."""
    seen = {}

    def load(model, *, progress, **options):
        seen.update(model=model, load=options)
        plan = SimpleNamespace(summary=lambda **_: "PLAN")
        handle = SimpleNamespace(plan=plan, store_stats=lambda: None)
        return SimpleNamespace(ktitan=handle), SimpleNamespace(chat_template="yes")

    def stream(model, tokenizer, messages, *, stats, on_prompt, **options):
        seen.update(messages=messages, stream=options)
        return (piece for piece in ("an", "swer"))

    monkeypatch.setattr(ktitan.api, "locate_model", lambda model, gguf_path: model)
    monkeypatch.setattr(ktitan.api, "load", load)
    monkeypatch.setattr(ktitan.api, "stream", stream)
    monkeypatch.setattr(ktitan.api, "PromptCache", lambda model, most_prompts: f"keeps {most_prompts}")
    monkeypatch.setattr(ktitan.api, "context_tokens", lambda model, asked: asked)
    return seen


def test_defaults(calls):
    result = CliRunner().invoke(app, ["m"], input="hi\n")
    assert (result.exit_code, result.stdout) == (0, "answer\n")
    assert calls == {"model": "m", "load": LOAD, "stream": STREAM, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("mark", ["-", "_"])
def test_every_option_arrives_written_either_way(calls, mark):
    words = "--model-path m --gguf-path g --optimize-config-path r.yaml --max-new-tokens 7 --top-p 0.5 --top-k 3 "
    words += "--min-p 0.1 --temperature 0.2 --repetition-penalty 1.5 --seed 4 --greedy --ignore-eos --vram 2GiB "
    words += "--chunk-size 9 --force-think --cache policy=lru --kv q8 --stats --no-prompt-cache "
    words += "--ram 3GiB --budget nvme=1TiB --context 512 --device cuda:1 --dtype float16 --no-color --system s -p hi"
    arguments = [word[:2] + word[2:].replace("-", mark) if word.startswith("--") else word for word in words.split()]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    load = {"gguf_path": "g", "rules": "r.yaml", "device": "cuda:1", "dtype": "float16"}
    stream = {"temperature": 0.2, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.5, "seed": 4}
    cache = {"cache": "policy=lru", "kv": "q8", "profile": None}
    assert calls["load"] == {**load, "budget": "nvme=1TiB,vram=2GiB,ram=3GiB", "context": 512, **cache}
    kept = {"prompt_cache": None, "context_tokens": 512}
    assert calls["stream"] == {**stream, "greedy": True, **LENGTHS, **kept}
    assert calls["messages"][0] == {"role": "system", "content": "s"}


def test_zero_is_a_value_and_not_unset(calls):
    zeros = ("temperature", "top_p", "top_k", "seed")
    result = CliRunner().invoke(app, ["m", "-p", "hi", *(f"--{name}=0" for name in zeros)])
    assert result.exit_code == 0
    assert calls["stream"] == {**STREAM, **dict.fromkeys(zeros, 0)}


def test_a_model_folder_answers(rig, tmp_path):
    links = [ord("\n"), *"😸 ok".encode(), 258]
    folder = rig.save(tmp_path / "model", rig.chain_model(dict(pairwise(links))), rig.byte_tokenizer())
    result = CliRunner().invoke(app, ["--model_path", str(folder), "--device", "cpu", "--stats"], input="hi\n")
    assert result.exit_code == 0, result.output
    assert result.stdout == "😸 ok\n"
    assert "decode 7 tokens" in result.stderr and "nothing is streamed from a drive" in result.stderr


def test_a_folder_without_a_tokenizer_is_the_users_error(rig, tmp_path):
    rig.chain_model({}).save_pretrained(tmp_path / "model")
    result = CliRunner().invoke(app, [str(tmp_path / "model"), "-p", "hi"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "tokenizer" in result.stderr


def test_routing_is_recorded_while_it_answers(tiny_gguf, tmp_path):
    path = tmp_path / "t.npz"
    words = ["-m", str(tiny_gguf), "-p", "The matrix is", "--max-new-tokens", "3", "--ignore-eos", "--greedy"]
    result = CliRunner().invoke(app, [*words, "--record-trace", str(path)])
    assert result.exit_code == 0, result.output
    trace = load_trace(path)
    assert trace.topk.shape == (6, trace.tokens, 4) and trace.n_experts == 32 and trace.predicted.min() >= 0
    assert trace.row_starts.tolist() == [0, trace.tokens]
