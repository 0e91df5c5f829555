"""Traces of routing: what is written comes back, and a stranger's file is looked at before it is believed."""

import contextlib
import io
import zipfile

import numpy as np
import pytest

from ktitan.errors import FormatError, IoError
from ktitan.tiers.trace import Trace, load_trace, save_trace


def random_trace(layers=2, tokens=12, chosen=2, experts=6, predicted=True):
    random = np.random.default_rng()
    topk = random.permuted(np.broadcast_to(np.arange(experts), (layers, tokens, experts)), axis=2)
    return Trace(
        topk[..., :chosen].astype(np.uint8),
        random.random((layers, tokens, chosen)).astype(np.float16),
        np.array([0, tokens // 2, tokens], np.int32),
        np.arange(1, layers + 1, dtype=np.int32),
        experts,
        topk[..., : 2 * chosen].astype(np.int16) if predicted else None,
        "tiny",
    )


def arrays_of(trace):
    names = ("topk", "weights", "row_starts", "layer_ids", "n_experts", "predicted", "model")
    return {name: np.asarray(getattr(trace, name)) for name in names}


@pytest.mark.parametrize("predicted", [True, False])
def test_what_is_saved_is_loaded(tmp_path, predicted):
    trace = random_trace(predicted=predicted)
    save_trace(tmp_path / "t.npz", trace)
    found = load_trace(tmp_path / "t.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]
    for name, array in arrays_of(trace).items():
        if array.dtype != object:
            np.testing.assert_array_equal(getattr(found, name), array)
    assert (found.layers, found.tokens, found.chosen, found.predicted is None) == (2, 12, 2, not predicted)


def of_layers(layers):
    return {
        "topk": np.tile(np.array([0, 1], np.uint8), (layers, 12, 1)),
        "weights": np.ones((layers, 12, 2), np.float16),
        "layer_ids": np.arange(layers, dtype=np.int32),
        "predicted": None,
    }


CASES = {
    "no array weights": {"weights": None},
    "topk is float64": {"topk": np.zeros((1, 2, 3))},
    "2 dimensions": {"topk": np.zeros((2, 3), np.uint8)},
    "weights has the shape": {"weights": np.zeros((2, 12, 3), np.float16)},
    "layer_ids for 2 layers": {"layer_ids": np.zeros(3, np.int32)},
    "no sequence": {"row_starts": np.zeros(1, np.int32)},
    "predicted has the shape": {"predicted": np.zeros((2, 11, 4), np.int16)},
    "with 2 chosen": {"n_experts": np.int32(1)},
    "of 3": {"n_experts": np.int32(3), "predicted": None},
    "an expert twice": {"topk": np.zeros((2, 12, 2), np.uint8)},
    "row_starts does not ascend": {"row_starts": np.array([0, 8, 4, 12], np.int32)},
    "layer_ids does not ascend": {"layer_ids": np.array([4, 2], np.int32)},
    "outside of 0..5": {"predicted": np.full((2, 12, 4), 6, np.int16)},
    "no short text": {"model": np.zeros(3)},
    "model is no short": {"model": np.frombuffer(b"\xff\xff\xff\xff", "<U1")[0:1].reshape(())},
    "experts in all": {"n_experts": np.int32(32768), **of_layers(5)},
}


@pytest.mark.parametrize("message", CASES)
def test_a_broken_trace_is_refused(tmp_path, message):
    arrays = {**arrays_of(random_trace(layers=2, experts=6)), **CASES[message]}
    if message == "of 3":
        arrays["topk"] = np.tile(np.array([1, 5], np.uint8), (2, 12, 1))
    path = tmp_path / "t.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(FormatError, match=message):
        load_trace(path)


def test_all_faults_are_told_at_once(tmp_path):
    arrays = {
        **arrays_of(random_trace()),
        "layer_ids": np.array([4, 2], np.int32),
        "topk": np.zeros((2, 12, 2), np.uint8),
    }
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(FormatError) as caught:
        load_trace(tmp_path / "t.npz")
    assert len(caught.value.faults) == 2


def header(shape, dtype="|u1"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize(
    "content", [header((1 << 60,)), header((1 << 30,)) + b"x", header((2,), "|O") + b"xx", b"junk", b""]
)
def test_an_array_that_lies_about_its_size_takes_no_memory(tmp_path, content):
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("topk.npy", content)
    with pytest.raises(FormatError, match="no trace"):
        load_trace(tmp_path / "t.npz")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("no zip")
    with pytest.raises(FormatError, match="remedy"):
        load_trace(tmp_path / "text")
    with pytest.raises(IoError):
        load_trace(tmp_path / "absent")
    with pytest.raises(IoError):
        load_trace(tmp_path)


def test_any_cut_or_changed_byte_is_an_error_or_a_trace(tmp_path):
    path = tmp_path / "t.npz"
    save_trace(path, random_trace())
    whole, random = path.read_bytes(), np.random.default_rng()
    for _ in range(200):
        broken = bytearray(whole)
        broken[random.integers(len(whole))] ^= 1 << random.integers(8)
        path.write_bytes(broken[: random.integers(len(whole)) if random.random() < 0.3 else len(whole)])
        with contextlib.suppress(FormatError, IoError):
            load_trace(path)
