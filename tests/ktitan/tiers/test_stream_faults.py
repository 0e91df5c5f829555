"""Files and drives that fail while a model streams: a request ends with an IoError naming the file, the next works."""

import os
import shutil

import pytest
import torch

import ktitan
from ktitan.errors import IoError

from support.failing_drive import failing_drive
from support.serving import serving
from support.streaming import greedy, load_resident, load_streamed, logits, save_mixture

SHARE = 0.15
IDS = torch.arange(3, 60)[None]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return save_mixture(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def expected(original):
    return logits(load_resident(original), IDS)


@pytest.fixture
def file(original, tmp_path):
    """A copy that a test may break; its time of change is kept, since a store knows the file by it."""
    return shutil.copy2(original, tmp_path / "model.gguf")


def cut(file):
    os.truncate(file, file.stat().st_size // 3)


def rewrite(file):
    with open(file, "r+b") as handle:
        handle.seek(file.stat().st_size // 2)
        handle.write(os.urandom(4096))


def put_back(file, original, stamp):
    """The old bytes in the same file, with the old time of change."""
    with open(file, "r+b") as handle, open(original, "rb") as source:
        shutil.copyfileobj(source, handle)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


@pytest.mark.parametrize("harm", [cut, rewrite])
def test_a_file_that_changes_ends_the_request_and_one_put_back_works(harm, file, original, expected):
    model, _ = load_streamed(file, SHARE)
    assert torch.equal(logits(model, IDS), expected)
    stamp = file.stat()
    harm(file)
    for _ in range(3):
        with pytest.raises(IoError, match=r"model\.gguf") as failed:
            logits(model, IDS)
        assert failed.value.faults[0].remedy
    put_back(file, original, stamp)
    for _ in range(3):
        assert torch.equal(logits(model, IDS), expected)


def test_a_file_in_whose_place_another_comes_gives_the_old_bits_or_an_error(file, original, expected, tmp_path):
    model, _ = load_streamed(file, SHARE)
    assert torch.equal(logits(model, IDS), expected)
    other = tmp_path / "other.gguf"
    other.write_bytes(os.urandom(file.stat().st_size))
    kept = file.rename(tmp_path / "kept.gguf")
    other.rename(file)
    try:
        assert torch.equal(logits(model, IDS), expected)
    except IoError as error:
        assert "model.gguf" in str(error)
    kept.rename(file)
    assert torch.equal(logits(model, IDS), expected)


def test_what_is_resident_needs_no_file(file, expected):
    model, store = load_streamed(file, 1.0, embedding="cpu")
    assert torch.equal(logits(model, IDS), expected)
    read = store.stats()["io"]["reads"]
    cut(file)
    assert torch.equal(logits(model, IDS), expected)
    assert store.stats()["io"]["reads"] == read


def test_generation_after_a_fault_goes_on_with_the_same_tokens(file, original):
    model, _ = load_streamed(file, SHARE)
    said = greedy(model, IDS)
    stamp = file.stat()
    cut(file)
    with pytest.raises(IoError):
        greedy(model, IDS)
    put_back(file, original, stamp)
    assert torch.equal(greedy(model, IDS), said)


def test_a_drive_that_fails_ends_requests_until_it_heals(original, expected, tmp_path):
    with failing_drive(tmp_path, original) as drive:
        model, _ = load_streamed(drive.file, SHARE)
        assert torch.equal(logits(model, IDS), expected)
        drive.fail(0.8)
        with pytest.raises(IoError, match=r"mixture\.gguf") as failed:
            logits(model, IDS)
        assert "Input/output error" in str(failed.value)
        drive.heal()
        for _ in range(2):
            assert torch.equal(logits(model, IDS), expected)
        model.ktitan.undo()


def test_a_server_answers_the_request_after_one_that_failed(file, original):
    model, tokenizer = ktitan.load(original, device="cpu")
    model, _ = load_streamed(file, SHARE)
    with serving(model, tokenizer) as client:
        ask = {"temperature": 0, "max_tokens": 6}
        first = client.complete("abab", **ask)
        assert first.status == 200
        stamp = file.stat()
        cut(file)
        failed = client.complete("baba", **ask)
        assert failed.status == 500 and failed.json["error"]["code"] == "IoError"
        put_back(file, original, stamp)
        again = client.complete("abab", **ask)
        assert (again.status, again.json["choices"]) == (200, first.json["choices"])
