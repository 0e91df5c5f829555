"""examples/make_moe.py: experts are the dense layer in another order and size; bad arguments are refused."""

import hashlib
import importlib.util
import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch

import ktitan

from support.good_models import save_gguf, small_llama
from support.operator_rig import fresh_seed

LAYERS, EXPERTS, HIDDEN, NEURONS = 3, 12, 64, 512
BLOCK_BYTES = {"q4_0": 18, "q8_0": 34}


@pytest.fixture(scope="module")
def example(repository):
    spec = importlib.util.spec_from_file_location("make_moe", repository / "examples" / "make_moe.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=list(BLOCK_BYTES))
def dense(request, tmp_path_factory):
    """A dense file of one type, and the type's name."""
    path = tmp_path_factory.mktemp("dense") / "dense.gguf"
    model = small_llama(hidden_size=HIDDEN, intermediate_size=NEURONS, num_hidden_layers=LAYERS)
    return save_gguf(path, model, kind=request.param), request.param


def run(repository, out, *options):
    command = [sys.executable, str(repository / "examples" / "make_moe.py"), str(out), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def make(repository, dense, tmp_path):
    """Makes a mixture of the dense file; gives its path."""

    def made(name="moe.gguf", *options):
        done = run(repository, tmp_path / name, "--source", dense[0], "--experts", EXPERTS, *options)
        assert done.returncode == 0, done.stderr
        assert f"GB, {LAYERS} layers of {EXPERTS} experts, 2 for a token" in done.stdout
        return tmp_path / name

    return made


def stored(path):
    return {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}


def numbers(data, kind):
    return gguf.quants.dequantize(np.ascontiguousarray(data), gguf.GGMLQuantizationType[kind.upper()])


def sorted_blocks(matrix, shape):
    """Blocks of numbers of `shape` as rows, sorted."""
    (rows, columns), (high, wide) = matrix.shape, shape
    blocks = matrix.reshape(rows // high, high, columns // wide, wide).swapaxes(1, 2).reshape(-1, high * wide)
    return blocks[np.lexsort(blocks.T)]


def test_every_expert_is_the_dense_layer_in_another_order(make, dense, example):
    seed = fresh_seed() % 1000
    path, (source, kind) = make("moe.gguf", "--seed", seed), dense
    old, new = stored(source), stored(path)
    d = example.differences(LAYERS, EXPERTS, seed)
    for layer in range(LAYERS):
        gate, up, down = (numbers(old[f"blk.{layer}.ffn_{part}.weight"], kind) for part in ("gate", "up", "down"))
        orders = set()
        for expert in range(EXPERTS):
            parts = [new[f"blk.{layer}.ffn_{part}_exps.weight"][expert] for part in ("gate", "up", "down")]
            own_gate, own_up, own_down = (numbers(part, kind) for part in parts)
            # Where block b of the expert's neurons was: its 32 gate rows are unique among those of the dense layer.
            was = [
                next(i for i in range(NEURONS // 32) if np.array_equal(block, gate[32 * i : 32 * i + 32]))
                for block in own_gate.reshape(-1, 32, HIDDEN)
            ]
            assert sorted(was) == list(range(NEURONS // 32))
            neurons = np.concatenate([np.arange(32) + 32 * block for block in was])
            assert np.array_equal(own_up, up[neurons])
            error = np.abs(own_down - (1 + d[layer, expert]) * down[:, neurons])
            assert (error <= np.abs(own_down) * 2.0**-10 + 1e-6).all()
            orders.add(tuple(was))
        assert len(orders) == EXPERTS


def test_scales_are_distinct_and_small(make, dense, example):
    new, kind = stored(make()), dense[1]
    d = example.differences(LAYERS, EXPERTS, 0)
    assert len(np.unique(d)) == LAYERS * EXPERTS and np.abs(d).max() < 0.03
    for layer in range(LAYERS):
        blocks = new[f"blk.{layer}.ffn_down_exps.weight"].reshape(EXPERTS, -1, BLOCK_BYTES[kind])
        scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
        assert np.isfinite(scales).all()
        # Sums do not mind the order; what is left of d after rounding keeps its rank.
        size = np.abs(scales).sum((1, 2))
        assert np.array_equal(np.argsort(size), np.argsort(d[layer]))


@pytest.mark.parametrize("experts", [8, 87, 256])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_as_many_experts_as_can_be_have_scales_of_their_own(example, kind, experts):
    generator = np.random.default_rng(fresh_seed())
    values = generator.normal(size=(576, 1536)).astype(np.float32)
    matrix = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    d = example.differences(3, experts, int(generator.integers(1000)))
    assert len(np.unique(d)) == d.size and np.abs(d).max() < 0.03
    assert len({example.scaled(matrix, kind, 1 + one).tobytes() for one in d[1]}) == experts


def test_without_differences_the_blocks_are_those_of_the_dense_layer(make, dense):
    (source, kind), new = dense, stored(make("same.gguf", "--most-d", 0))
    for layer in range(LAYERS):
        old = stored(source)[f"blk.{layer}.ffn_down.weight"]
        for expert in new[f"blk.{layer}.ffn_down_exps.weight"]:
            assert np.array_equal(
                sorted_blocks(expert, (HIDDEN, BLOCK_BYTES[kind])), sorted_blocks(old, (HIDDEN, BLOCK_BYTES[kind]))
            )


def test_the_mixture_computes_what_the_dense_model_does(make, dense):
    mixture, _ = ktitan.load(make(), device="cpu", dtype="float32")
    stock, _ = ktitan.load(dense[0], device="cpu", dtype="float32")
    assert type(mixture).__name__ == "MixtralForCausalLM"
    ids = torch.randint(3, 131, (2, 33))
    with torch.inference_mode():
        expected, found = stock(ids).logits, mixture(ids).logits
    assert not torch.equal(found, expected)
    assert (found - expected).norm() < 0.05 * expected.norm()


def test_a_seed_makes_the_same_file(make):
    files = [make(name, "--seed", seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))]
    first, again, other = (hashlib.sha256(path.read_bytes()).digest() for path in files)
    assert first == again != other


def test_bad_arguments_are_refused_and_nothing_is_left(repository, dense, tmp_path, tiny_gguf):
    there = tmp_path / "there.gguf"
    there.write_bytes(b"mine")
    cases = {
        ("--experts", 7): "8 to 256",
        ("--experts", 257): "8 to 256",
        ("--top-k", 9): "1 to the number of experts",
        ("--most-d", 0.04): "0, or 0.002 to 0.03",
        ("--most-d", 0.001): "0, or 0.002 to 0.03",
        ("--layers", LAYERS + 1): f"the model has {LAYERS}",
        ("--source", tiny_gguf): "not a dense model of architecture llama",
    }
    for options, message in cases.items():
        done = run(repository, tmp_path / "out.gguf", "--source", dense[0], *options)
        assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    assert "there already" in run(repository, there, "--source", dense[0]).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there.gguf"] and there.read_bytes() == b"mine"


def test_types_whose_blocks_cannot_be_moved_are_refused(repository, tmp_path):
    source = save_gguf(tmp_path / "f16.gguf", kind="f16")
    done = run(repository, tmp_path / "out.gguf", "--source", source)
    assert done.returncode == 2 and "ffn_gate.weight is F16; whole blocks can be moved in Q4_0" in done.stderr


def test_a_drive_without_room_is_seen_before_anything_is_written(example, dense, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(example.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1 << 20}))
    monkeypatch.setattr(sys, "argv", ["make_moe.py", str(tmp_path / "out.gguf"), "--source", str(dense[0])])
    with pytest.raises(SystemExit) as stopped:
        example.main()
    assert stopped.value.code == 2 and "do not fit" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing(example, dense, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(example.os, "fsync", full)
    monkeypatch.setattr(sys, "argv", ["make_moe.py", str(tmp_path / "out.gguf"), "--source", str(dense[0])])
    with pytest.raises(SystemExit):
        example.main()
    assert list(tmp_path.iterdir()) == []
