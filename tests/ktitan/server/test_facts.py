"""What the server says of itself: models, health, tiers, figures, its document, its page."""

import re

import pytest

import ktitan
from ktitan.server import app as server_app
from ktitan.server.service import model_id

from support.serving import serving, wait_for


def test_models(echo):
    card = echo.get("/v1/models").json["data"][0]
    assert (card["id"], card["object"], card["aliases"]) == ("tiny-echo", "model", ["titan", "ktitan", "default"])
    for name in ("titan", "tiny-echo", "default"):
        assert echo.get(f"/v1/models/{name}").json == card


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("/data/Qwen3-30B", "Qwen3-30B"),
        ("./m.Q4_K_M.gguf", "m.Q4_K_M"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("demo", "demo"),
        (".", "."),
    ],
)
def test_own_id(name, called):
    assert model_id(name) == called


def test_figures_count_what_happened(echo):
    def figure(name):
        text = echo.get("/metrics").text
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)} (\S+)", text, re.M))

    names = [
        'ktitan_requests_total{path="/v1/chat/completions",status="200"}',
        'ktitan_tokens_total{kind="completion"}',
        "ktitan_job_seconds_count",
        'ktitan_jobs_total{end="finished"}',
    ]
    before = [figure(name) for name in names]
    echo.chat("abc")
    echo.wait_idle()
    assert [figure(name) - old for name, old in zip(names, before, strict=True)] == [1, 3, 1, 1]
    answer = echo.get("/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    assert echo.get("/metrics", Accept="text/plain").headers["content-type"].startswith("text/plain")
    for path in ("/a", "/b?c", "/v1/models/x"):
        echo.get(path)
    assert not re.search(r'path="/(a|b)"', echo.get("/metrics").text)


def test_tiers_of_a_loaded_model(tiny_gguf):
    model, tokenizer = ktitan.load(tiny_gguf, budget="ram=1GiB")
    with serving(model, tokenizer, str(tiny_gguf)) as client:
        before = client.get("/tiers").json
        ram = before["tiers"]["ram"]
        assert before["model"] == tiny_gguf.stem
        assert ram["used_bytes"] == ram["weights_bytes"] == model.ktitan.stats()["resident_bytes"]["ram"]
        assert (ram["budget_bytes"], ram["hits"]) == (2**30, None)
        assert before["tiers"]["nvme"]["used_bytes"] == 0
        raw = client.open({"prompt": "a", "max_tokens": 1900, "ignore_eos": True}, "/v1/completions")
        wait_for(lambda: client.get("/tiers").json["tiers"]["ram"]["kv_bytes"] > 0)
        raw.close()
        client.wait_idle()
        speed = client.get("/tiers").json["speed"]
        assert speed["prefill_tokens_per_second"] > 0
        expected = "".join(ktitan.stream(model, tokenizer, "The cache", max_new_tokens=24, greedy=True))
        assert client.complete("The cache", max_tokens=24, temperature=0).json["choices"][0]["text"] == expected


def test_the_kv_budget_limits_the_context(tiny_gguf):
    model, tokenizer = ktitan.load(tiny_gguf)
    weights = model.ktitan.stats()["resident_bytes"]["ram"]
    parts = model.ktitan.plan.parts["ram"]
    per_token = parts["kv"] // model.ktitan.plan.context_tokens
    model.ktitan.plan.limits["ram"] = weights + parts["workspace"] + 200 * per_token
    with serving(model, tokenizer, str(tiny_gguf)) as client:
        assert client.get("/v1/models").json["data"][0]["context_tokens"] == 192  # whole pages of 64
        ids = list(range(300))
        error = client.complete(ids).json["error"]
        assert (error["code"], "at most 191 fit" in error["message"]) == ("context_length_exceeded", True)
        assert client.complete(ids[:188], max_tokens=4, ignore_eos=True).status == 200


def test_the_document_names_the_routes_and_needs_nothing_from_outside(echo):
    document = echo.get("/openapi.json").json
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/tiers", "/metrics"} <= set(
        document["paths"]
    )
    assert echo.get("/docs").status == 404


def test_files_of_the_page_are_served_and_nothing_beside_them(rig, tmp_path, monkeypatch):
    from support.echo_model import EchoModel

    (tmp_path / "page").mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    monkeypatch.setattr(server_app, "PAGE", tmp_path / "page")
    with serving(EchoModel(), rig.byte_tokenizer()) as client:
        assert client.get("/").status == 404
    (tmp_path / "page" / "index.html").write_text("<p>hello")
    (tmp_path / "page" / "page.js").write_text("let x")
    with serving(EchoModel(), rig.byte_tokenizer(), api_keys=("k",)) as client:
        assert (client.get("/").text, client.get("/index.html").text) == ("<p>hello",) * 2
        assert client.get("/").headers["content-type"].startswith("text/html")
        assert "javascript" in client.get("/page.js").headers["content-type"]
        assert client.get("/../secret.txt").status == 401
        assert client.get("/../secret.txt", Authorization="Bearer k").status == 404
        assert client.request("POST", "/").json["error"]["code"] == "method_not_allowed"
