"""What is downloaded, and what is refused before it is."""

import json
import shutil

import pytest

from ktitan.errors import BudgetError, FormatError, IoError, UnsupportedError, WeightError
from ktitan.hub import download as download_module
from ktitan.hub.fetch import fetch
from ktitan.hub.names import parse_name

GIB = 1 << 30


def get(text, **options):
    return fetch(parse_name(text), **options)


def there(found):
    return {path.relative_to(found.folder).as_posix() for path in found.folder.rglob("*") if path.is_file()}


def test_only_what_a_model_needs_is_downloaded_and_once(hub, llama_files):
    commit = hub.add("org/tiny", llama_files).refs["main"]
    found = get("org/tiny")
    shards = {path for path in llama_files if path.startswith("model-0")}
    small = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert len(shards) == 2 and there(found) == shards | small | {"model.safetensors.index.json"}
    assert (found.commit, found.gguf, found.has_weights) == (commit, None, True)
    assert found.downloaded_bytes == sum(found.files.values()) == sum(len(llama_files[path]) for path in there(found))
    assert all((found.folder / path).read_bytes() == llama_files[path] for path in found.files)
    hub.asked()
    assert get("org/tiny").downloaded_bytes == 0
    assert hub.asked() == ["GET /api/models/org/tiny"]


def test_a_plan_takes_config_and_tokenizer(hub, llama_files):
    hub.add("org/tiny", llama_files)
    found = get("org/tiny", weights=False)
    assert not found.has_weights and not [path for path in there(found) if "safetensors" in path]
    get("org/tiny")
    assert get("org/tiny", weights=False).has_weights


def test_a_new_commit_brings_only_what_changed(hub, llama_files):
    repo = hub.add("org/tiny", llama_files)
    first = get("org/tiny")
    repo.commit({**llama_files, "config.json": llama_files["config.json"] + b" "})
    second = get("org/tiny")
    assert second.folder != first.folder and get("org/tiny").folder == second.folder
    assert sum("/storage/" in one for one in hub.asked("GET")) == 2  # both times, of the first commit


def test_revisions(hub, llama_files):
    repo = hub.add("org/tiny", llama_files)
    other = repo.commit({**llama_files, "generation_config.json": b"{}"}, "refs/pr/1")
    for text in ("org/tiny@refs/pr/1", f"org/tiny@{other}"):
        assert get(text).commit == other
    with pytest.raises(WeightError, match="no revision 'gone'") as caught:
        get("org/tiny@gone")
    assert f"{hub.url}/org/tiny/tree/main" in caught.value.remedy


@pytest.mark.parametrize("text", ["org/gg:q8_0", "org/gg:Q8_0", "org/gg/tiny-Q8_0.gguf"])
def test_a_tag_or_a_file_picks_one_gguf(hub, gguf_files, text):
    hub.add("org/gg", gguf_files)
    found = get(text)
    assert there(found) == {"tiny-Q8_0.gguf"} and found.gguf == "tiny-Q8_0.gguf"


@pytest.mark.parametrize("text", ["org/gg:f32", "org/gg/F32/tiny-00002-of-00002.gguf"])
def test_a_split_model_comes_whole(hub, gguf_files, text):
    shards = sorted(path for path in gguf_files if path.startswith("F32/"))
    assert len(shards) == 2
    hub.add("org/gg", gguf_files)
    found = get(text)
    assert sorted(there(found)) == shards and found.gguf == shards[0]
    hub.add("org/short", {path: data for path, data in gguf_files.items() if path != shards[0]})
    with pytest.raises(WeightError, match="has 1 of its 2 shards"):
        get(text.replace("org/gg", "org/short"))


def test_of_several_models_one_must_be_named(hub, gguf_files):
    hub.add("org/gg", gguf_files)
    with pytest.raises(UnsupportedError, match=r"2 GGUF models: Q8_0 \(.* KiB\), F32 \(.* KiB\)") as caught:
        get("org/gg")
    assert caught.value.remedy == "name one, e.g. org/gg:Q8_0"
    with pytest.raises(WeightError, match=r"no GGUF model 'Q2_K'.*Q8_0"):
        get("org/gg:Q2_K")
    assert not hub.cache.exists()
    hub.add("org/one", {path: data for path, data in gguf_files.items() if not path.startswith("F32/")})
    assert get("org/one").gguf == "tiny-Q8_0.gguf"


@pytest.mark.parametrize(
    ("files", "error", "text", "remedy"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b""}, UnsupportedError, "only pickled weights", "save_pretrained"),
        ({"config.json": b"{}"}, UnsupportedError, "no weights", "safetensors or GGUF"),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b""}, WeightError, "LoRA adapter", "causal"),
        ({"data.csv": b""}, WeightError, "no model in a format", "causal"),
        ({"config.json": b"[", "model.safetensors": b""}, FormatError, "cannot be read", "publisher"),
        ({"config.json": b"[" * 19_000, "model.safetensors": b""}, FormatError, "cannot be read", "publisher"),
        (
            {"config.json": b'{"quantization_config": {"quant_method": "fp8"}}', "model.safetensors": bytes(30_000)},
            UnsupportedError,
            "'fp8'.*no weights were downloaded",
            "GGUF",
        ),
        ({"config.json": b"{}", "../../evil.json": b"x", "model.safetensors": b""}, FormatError, "evil", "trust"),
        ({"config.json": b"{}", "/etc/evil.gguf": b"x"}, FormatError, "evil", "trust"),
        ({"config.json": b"{}", "a\\..\\evil.gguf": b"x"}, FormatError, "evil", "trust"),
    ],
)
def test_what_is_no_model_is_refused_before_any_weight_is_asked_for(hub, files, error, text, remedy):
    hub.add("org/odd", files)
    with pytest.raises(error, match=text) as caught:
        get("org/odd")
    assert caught.value.where == "org/odd" and remedy in caught.value.remedy
    assert not [one for one in hub.asked("GET") if "safetensors" in one or "storage" in one or ".bin" in one]
    assert not list(hub.home.parent.glob("**/evil*"))


def test_a_shard_that_the_index_names_and_nobody_has(hub, llama_files):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "../../b.safetensors", "c": "c.safetensors"}}
    hub.add("org/tiny", {**llama_files, "model.safetensors.index.json": json.dumps(index).encode()})
    with pytest.raises(WeightError, match="2 weight files") as caught:
        get("org/tiny")
    assert [fault.message.split()[0] for fault in caught.value.faults] == ["../../b.safetensors", "c.safetensors"]


def test_a_commit_that_is_no_hash_is_refused(hub, llama_files):
    hub.add("org/tiny", llama_files)
    hub.sha = "../../../x"
    with pytest.raises(FormatError, match="commit"):
        get("org/tiny")
    assert not hub.cache.exists()


def test_no_room_is_said_before_the_download(hub, llama_files, monkeypatch):
    hub.add("org/tiny", llama_files)
    monkeypatch.setattr(download_module.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(GIB, GIB, 9000))
    with pytest.raises(BudgetError, match=r"KiB of org/tiny are to be downloaded, and 8.8 KiB are free") as caught:
        get("org/tiny")
    assert "HF_HOME" in caught.value.remedy and not [one for one in hub.asked() if "storage" in one]


def test_gated_models_name_the_way_in(hub, llama_files, monkeypatch):
    hub.add("org/gated", llama_files, gated=True)
    with pytest.raises(WeightError, match="licence") as caught:
        get("org/gated")
    assert f"{hub.url}/org/gated" in caught.value.remedy and "hf auth login" in caught.value.remedy
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert get("org/gated").has_weights
    assert hub.leaked == []  # the token stays with the hub


def test_an_unknown_name_may_be_a_path_or_a_model(hub):
    with pytest.raises(WeightError, match="no such file or folder here, and the hub knows no such model") as caught:
        get("org/nothing")
    assert "spelling" in caught.value.remedy and "private" in caught.value.remedy


@pytest.mark.parametrize(("status", "text"), [(429, "too many requests"), (500, "the hub fails"), (403, "refuses")])
def test_a_hub_that_fails_is_told_from_a_wrong_name(hub, llama_files, status, text):
    hub.add("org/tiny", llama_files)
    hub.status = status
    with pytest.raises(WeightError, match=text):
        get("org/tiny")


def test_no_hub_at_all(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(WeightError, match="cannot be reached") as caught:
        get("org/tiny")
    assert "HF_ENDPOINT" in caught.value.remedy


@pytest.mark.parametrize("status", [None, 503])
def test_what_is_cached_needs_no_hub(hub, offline, llama_files, gguf_files, caplog, status):
    hub.add("org/tiny", llama_files)
    hub.add("org/gg", gguf_files)
    before = [get("org/tiny"), get("org/gg:Q8_0")]
    if status is None:
        offline()
    hub.status = status
    hub.asked()
    again = [get("org/tiny"), get("org/gg:Q8_0")]
    assert [(one.folder, one.gguf, one.files) for one in again] == [(one.folder, one.gguf, one.files) for one in before]
    assert bool(caplog.records) == bool(hub.asked()) == (status is not None)


def test_offline_what_is_not_cached_is_refused(hub, offline, llama_files, gguf_files):
    hub.add("org/tiny", llama_files)
    hub.add("org/gg", gguf_files)
    get("org/tiny", weights=False)
    get("org/gg:Q8_0")
    offline()
    for text, reason in (
        ("org/new", "HF_HUB_OFFLINE"),
        ("org/tiny", "model.safetensors is not in the cache"),
        ("org/tiny@dev", "HF_HUB_OFFLINE"),
        ("org/gg:F32", "no GGUF model 'F32'.*not the hub"),
    ):
        with pytest.raises(WeightError, match=reason):
            get(text)
    assert not get("org/tiny", weights=False).has_weights


@pytest.mark.parametrize("reference", [b"\xff\xfe", None])
def test_a_broken_reference_in_the_cache_is_refused(hub, offline, llama_files, reference):
    hub.add("org/tiny", llama_files)
    get("org/tiny", weights=False)
    offline()
    main = hub.cache / "models--org--tiny" / "refs" / "main"
    main.unlink()
    main.mkdir() if reference is None else main.write_bytes(reference)
    with pytest.raises(IoError, match="part of the cache is broken") as caught:
        get("org/tiny")
    assert "models--org--tiny by hand" in caught.value.remedy


def test_a_cut_connection_is_taken_up_where_it_broke(hub, monkeypatch, llama_files):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    hub.add("org/tiny", llama_files)
    name = "model-00002-of-00002.safetensors"
    hub.cuts[name] = 50_000
    found = get("org/tiny")
    assert (found.folder / name).read_bytes() == llama_files[name]
    assert [(path, start >= 40_000) for path, start in hub.ranges] == [(name, True)]


def test_a_cache_that_cannot_be_written(hub, llama_files):
    hub.add("org/tiny", llama_files)
    hub.home.mkdir()
    hub.cache.write_text("no folder")
    with pytest.raises(IoError) as caught:
        get("org/tiny")
    assert "HF_HOME" in caught.value.remedy
