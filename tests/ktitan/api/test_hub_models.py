"""Models on the hub through the API: loading, planning, and where a name may stand for a path."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import ktitan
from ktitan.api.locate import locate

from support.fake_hub import read_folder
from support.gguf_files import describe, gguf_tensors, write_model
from support.hub_rig import hub, offline  # noqa: F401
from support.tiny_models import random_ids, save_tiny
from support.tiny_tokenizer import tiny_tokenizer


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """A stock model, the files of its folder, and of a split GGUF without a tokenizer."""
    folder = tmp_path_factory.mktemp("stock")
    model = save_tiny("llama", folder, max_shard_size="150KB")
    tiny_tokenizer().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"top_k": 7, "do_sample": True}))
    split = tmp_path_factory.mktemp("split")
    tokens = [f"<{number}>" for number in range(model.config.vocab_size)]
    write_model(split / "t.gguf", *describe(model.config), gguf_tensors(model), tokens=tokens, split_max_size=150_000)
    return model, read_folder(folder), read_folder(split)


@pytest.fixture
def shop(hub, stock):  # noqa: F811
    hub.add("org/tiny", stock[1])
    hub.add("org/gg", stock[2])
    return hub


def difference(model, other):
    ids = random_ids(1, 9)
    with torch.inference_mode():
        return (model(ids).logits - other(ids).logits).abs().max()


def test_a_hub_id_loads_and_asks_nothing_more(shop, stock):
    model, tokenizer = ktitan.load("org/tiny", device="cpu")
    assert difference(model, stock[0]) < 1e-4 and model.generation_config.top_k == 7
    assert any("storage" in one for one in shop.asked())
    "".join(ktitan.stream(model, tokenizer, "abc", max_new_tokens=4))
    model.ktitan.undo()
    assert shop.asked() == []


def test_offline_it_loads_from_the_cache(shop, stock, offline):  # noqa: F811
    ktitan.load("org/tiny", device="cpu")
    offline()
    shop.asked()
    assert difference(ktitan.load("org/tiny", device="cpu")[0], stock[0]) < 1e-4
    assert shop.asked() == []


def test_weights_of_a_hub_id_fill_a_model_of_ones_own(shop, stock, tmp_path):
    (tmp_path / "config.json").write_bytes(stock[1]["config.json"])
    config = AutoConfig.from_pretrained(tmp_path)
    for weights, origin in (("org/tiny", ""), (["org/tiny"], ""), ("org/gg", ""), (None, "org/tiny")):
        config._name_or_path = origin
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.config._name_or_path = origin
        ktitan.optimize_and_load(model, "auto", weights=weights, device="cpu")
        assert difference(model, stock[0]) < 1e-4
        if weights == "org/tiny":
            assert model.generation_config.top_k == 7


def test_a_plan_of_a_hub_id_reads_no_weights(shop):
    plan = ktitan.plan_model("org/tiny", device="cpu")
    assert not plan.faults and "no weights were opened" in plan.notes[0]
    assert not [one for one in shop.asked() if "storage" in one or "index" in one]
    ktitan.load("org/tiny", device="cpu")
    assert "no weights were opened" not in " ".join(ktitan.plan_model("org/tiny", device="cpu").notes)


def test_a_plan_of_a_gguf_on_the_hub_reads_its_headers(shop, stock):
    plan = ktitan.plan_model("org/gg", device="cpu")
    assert not plan.faults and {path for path, start in shop.ranges} == set(stock[2])
    assert not list(shop.cache.glob("**/*.gguf")) and "ktitan pull org/gg downloads them" in "; ".join(plan.notes)
    files = locate("org/gg")
    assert files.remote is None and len(list(files.weights[0].parent.iterdir())) == len(stock[2])
    cached = ktitan.plan_model("org/gg", device="cpu")
    assert [(row.path, row.format, row.bytes) for row in cached.rows] == [
        (row.path, row.format, row.bytes) for row in plan.rows
    ]


def test_config_from_one_repository_and_weights_from_another(shop, stock):
    files = locate("org/tiny", "org/gg")
    assert files.home is not None and files.weights == files.overrides and not list(files.home.glob("*.safetensors"))
    model, _ = ktitan.load("org/tiny", "org/gg", device="cpu")
    assert difference(model, stock[0]) < 1e-4


def test_a_plan_downloads_no_gguf_path(shop):
    with pytest.raises(ktitan.WeightError, match=r"KiB are not downloaded yet") as caught:
        ktitan.plan_model("org/tiny", gguf_path="org/gg")
    assert caught.value.remedy == "ktitan pull org/gg"
    with pytest.raises(ktitan.WeightError, match="no GGUF model"):
        locate("org/tiny", "org/tiny")


def test_a_path_that_is_there_is_never_asked_for(shop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_tiny("llama", tmp_path / "org" / "tiny")
    assert str(locate("org/tiny").home) == "org/tiny" and shop.asked() == []


def test_a_typo_of_a_path_is_told_from_an_unknown_model(shop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "llama-3").mkdir(parents=True)
    with pytest.raises(ktitan.WeightError, match="the hub knows no such model") as caught:
        locate("models/lama-3")
    assert caught.value.remedy.startswith("did you mean models/llama-3? Else: for a path")


@pytest.mark.parametrize("name", ["../org/tiny", "org/..", "./org/tiny", "org/tiny@../../x", "org/tiny/../x.gguf"])
def test_what_leads_out_of_a_name_never_reaches_the_hub(shop, name):
    with pytest.raises(ktitan.WeightError, match="no such file or folder"):
        locate(name)
    assert shop.asked() == [] and not shop.cache.exists()
