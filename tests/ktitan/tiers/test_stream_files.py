"""Streamed models where a system refuses ways to read, and where files are laid out oddly."""

import errno
import json
import logging
import os
import random
import shutil
import struct

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ktitan
from ktitan.errors import RuleError

from support.gguf_blocks import ggml_type, random_rows
from support.gguf_files import add_value
from support.io_rig import ENTER, SETUP, in_child, refuse
from support.operator_rig import fresh_seed
from support.packed_models import write_packed
from support.streaming import load_resident, load_streamed, logits, rules
from support.tiny_models import on_meta, save_tiny

SHARE = 0.5
IDS = torch.arange(3, 40)[None]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    """A mixture of six experts with rows in one format."""
    path = tmp_path_factory.mktemp("cases") / "m.gguf"
    write_packed(path, "qwen3_moe", "q4_k", fresh_seed())
    return path


@pytest.fixture(scope="module")
def expected(model_file):
    return logits(load_resident(model_file), IDS)


@pytest.fixture
def rng():
    return np.random.default_rng(fresh_seed())


def lines(caplog, text):
    return [record.message for record in caplog.records if text in record.message]


@pytest.mark.parametrize("call", [SETUP, ENTER])
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.ENOMEM])
def test_a_model_streams_where_io_uring_is_refused_and_says_so_once(model_file, expected, caplog, call, error):
    def task():
        refuse(call, error)
        with caplog.at_level(logging.WARNING):
            model, store = load_streamed(model_file, SHARE)
            assert torch.equal(logits(model, IDS), expected)
        assert store.stats()["io"]["uring"] == 0
        assert len(lines(caplog, "threads read instead")) == 1

    in_child(task)


def test_a_model_in_memory_is_read_through_the_cache_and_that_is_said(model_file, expected, caplog):
    memory = "/dev/shm"
    if not os.access(memory, os.W_OK):
        pytest.skip("no tmpfs")
    copy = shutil.copy(model_file, f"{memory}/ktitan-{os.getpid()}.gguf")
    try:
        with caplog.at_level(logging.WARNING):
            model, store = load_streamed(copy, SHARE)
        assert torch.equal(logits(model, IDS), expected)
        assert store.stats()["io"]["direct_files"] == 0
        assert len(lines(caplog, "O_DIRECT is refused for 1 of 1 files")) == 1
    finally:
        os.unlink(copy)


def rewritten(source, paths, change=lambda name, data: None, shuffled=False):
    """The tensors of a GGUF over several files; `change` may give (rows, type) for a tensor."""
    reader = gguf.GGUFReader(source)
    tensors = list(reader.tensors)
    if shuffled:
        random.shuffle(tensors)
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
        for key, field in reader.fields.items():
            if number == 0 and not key.startswith("GGUF.") and key != "general.architecture":
                add_value(writer, key, field.contents())
        if len(paths) > 1:
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", len(paths))
            writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[number :: len(paths)]:
            rows, kind = change(tensor.name, tensor) or (tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, np.ascontiguousarray(rows), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def test_experts_over_three_files_behind_links(model_file, expected, tmp_path):
    """As a hub's cache has them, gate, up and down of an expert in any of the files."""
    blobs, tree = tmp_path / "blobs", tmp_path / "snapshots" / "r"
    blobs.mkdir()
    tree.mkdir(parents=True)
    paths = [blobs / f"{number}" for number in range(3)]
    rewritten(model_file, paths, shuffled=True)
    for number, path in enumerate(paths):
        (tree / f"m-{number + 1:05}-of-00003.gguf").symlink_to(os.path.relpath(path, tree))
    model, store = load_streamed(tree / "m-00001-of-00003.gguf", SHARE)
    assert torch.equal(logits(model, IDS), expected)
    assert store.stats()["io"]["files"] == 3


def test_gate_up_and_down_of_three_formats(model_file, tmp_path, rng):
    kinds = {"ffn_gate_exps": "q4_k", "ffn_up_exps": "q6_k", "ffn_down_exps": "q8_0"}

    def change(name, tensor):
        kind = kinds.get(name.split(".")[-2])
        shape = tuple(map(int, reversed(tensor.shape)))
        return kind and (random_rows(kind, shape, rng), ggml_type(kind))

    path = tmp_path / "mixed.gguf"
    rewritten(model_file, [path], change)
    model, _ = load_streamed(path, SHARE)
    row = next(row for row in model.ktitan.plan.rows if row.operator == "experts.streamed")
    assert row.format == "q4_k+q6_k+q8_0"
    assert torch.equal(logits(model, IDS), logits(load_resident(path), IDS))


def test_experts_of_a_layer_in_unlike_formats_are_refused(tmp_path, rng):
    """A record's shape is that of the first expert's."""
    single, path = tmp_path / "single.gguf", tmp_path / "unlike.gguf"
    write_packed(single, "mixtral", "q4_k", fresh_seed(), single_experts=True)

    def change(name, tensor):
        _, _, part, expert, *_ = [*name.split("."), "", "", ""]
        if not part.startswith("ffn_") or expert != "2":
            return None
        return random_rows("q6_k", tuple(map(int, reversed(tensor.shape))), rng), ggml_type("q6_k")

    rewritten(single, [path], change)
    assert torch.equal(logits(load_streamed(single, SHARE)[0], IDS), logits(load_resident(single), IDS))
    with pytest.raises(RuleError, match="not stored whole"):
        load_streamed(path, SHARE)


def test_safetensors_whose_data_begins_at_an_odd_byte_in_any_order(tmp_path):
    save_tiny("mixtral", tmp_path, seed=fresh_seed())
    file = tmp_path / "model.safetensors"
    weights = {name: tensor.bfloat16() for name, tensor in load_file(file).items()}
    body, entries = b"", {}
    for name in random.sample(sorted(weights), len(weights)):
        raw = weights[name].contiguous().view(torch.uint8).numpy().tobytes()
        place = [len(body), len(body) + len(raw)]
        entries[name] = {"dtype": "BF16", "shape": list(weights[name].shape), "data_offsets": place}
        body += raw
    header = json.dumps({name: entries[name] for name in sorted(entries)}).encode()
    header += b" " * (1 + len(header) % 2)
    assert len(header) % 2
    file.write_bytes(struct.pack("<Q", len(header)) + header + body)
    found = {}
    for kind in ("cpu", "streamed"):
        model = ktitan.optimize_and_load(on_meta(tmp_path, torch.bfloat16), rules(kind), weights=tmp_path, device="cpu")
        found[kind] = logits(model, IDS % 90)
    assert "experts.streamed" in {row.operator for row in model.ktitan.plan.rows}
    assert torch.equal(found["cpu"], found["streamed"])


def test_only_the_experts_that_are_chosen_are_read(model_file):
    model, store = load_streamed(model_file, 0.6, embedding="cpu")
    streamed, resident = model.model.layers[0].mlp.experts, load_resident(model_file).model.layers[0].mlp.experts
    nothing = streamed(torch.zeros(0, 256), torch.zeros(0, 3, dtype=torch.long), torch.zeros(0, 3))
    assert nothing.shape == (0, 256) and store.stats()["demands"] == 0
    for tokens in (1, 63, 64, 65):
        inputs = torch.randn(tokens, 256), torch.full((tokens, 3), 4), torch.rand(tokens, 3)
        assert torch.equal(streamed(*inputs), resident(*inputs))
    stats = store.stats()
    assert (stats["demands"], stats["misses"]) == (4, 1)
    assert stats["io"]["wanted_bytes"] == 3 * 256 * 144  # rows of 256 numbers in q4_k
