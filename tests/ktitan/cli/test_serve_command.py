"""`ktitan serve`: what its options become, and what is refused before a model is loaded."""

import socket
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ktitan.cli.main import app
from ktitan.local_chat import loading
from ktitan.server import run


@pytest.fixture
def served(monkeypatch):
    """The options of each server that the command would have run; nothing is loaded."""
    calls = []
    monkeypatch.setattr(loading, "load_model", lambda options, console: (options, "tokenizer"))

    def serve_model(model, tokenizer, name, options, listener, ready, ended):
        calls.append((model.load, name, options, listener.getsockname()))
        ready()

    monkeypatch.setattr(run, "serve_model", serve_model)
    return calls


def test_options_reach_the_server(served):
    words = (
        "serve m.gguf --port 0 --queue 3 --max_body 2MB --chunk_size 64 --cors https://a.org --context 99 --ram 1GiB"
    )
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 0, result.output
    load, name, options, (host, port) = served[0]
    assert (name, host, load["context"], load["budget"]) == ("m.gguf", "127.0.0.1", 99, "ram=1GiB")
    assert (options.queue_limit, options.body_limit_bytes, options.chunk_tokens) == (3, 2_000_000, 64)
    assert (options.cors_origins, options.context_tokens, options.api_keys) == (("https://a.org",), 99, ())
    assert f"serving at http://127.0.0.1:{port}/v1" in result.stderr
    assert result.stdout == ""


def test_keys_come_from_the_option_or_the_environment(served, monkeypatch):
    monkeypatch.setenv("KTITAN_API_KEY", "one,two")
    for words, keys in (("", ("one", "two")), (" --api-key three", ("three",))):
        assert CliRunner().invoke(app, f"serve -m x --port 0{words}".split()).exit_code == 0
        assert served[-1][2].api_keys == keys


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--host 0.0.0.0", "--no-auth"),
        ("--no-auth --api-key k", "--no-auth"),
        ("--cors example.org", "--cors"),
        ("--max-body much", "size"),
        ("--port 70000", "--port"),
        ("--host 192.0.2.1 --no-auth", "--host"),
    ],
)
def test_what_is_refused_before_anything_is_loaded(served, words, reason):
    result = CliRunner().invoke(app, ["serve", "x", *words.split()])
    assert (result.exit_code, served) == (2, [])
    assert reason in result.stderr


def test_a_port_in_use_is_refused_before_anything_is_loaded(served):
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = CliRunner().invoke(app, ["serve", "x", "--port", str(other.getsockname()[1])])
    assert (result.exit_code, served) == (2, [])
    assert "in use" in result.stderr


def test_routing_is_recorded_until_the_server_ends(served, monkeypatch, tmp_path):
    seen = []

    @contextmanager
    def record_trace(path):
        seen.append((path, len(served)))
        yield
        seen.append(("end", len(served)))

    def load_model(options, console):
        return SimpleNamespace(load=options.load, ktitan=SimpleNamespace(record_trace=record_trace)), "tokenizer"

    monkeypatch.setattr(loading, "load_model", load_model)
    path = tmp_path / "t.npz"
    result = CliRunner().invoke(app, ["serve", "m", "--port", "0", "--record-trace", str(path)])
    assert result.exit_code == 0, result.output
    assert seen == [(path, 0), ("end", 1)]
