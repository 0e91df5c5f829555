"""Opening models: one file, shards under their published names, folders."""

import shutil

import gguf
import numpy as np
import pytest
import torch

from ktitan.errors import FormatError, WeightError
from ktitan.weights.gguf_source import open_gguf

from support.gguf_files import write_model

TENSORS = {f"blk.{index}.attn_norm.weight": torch.arange(8.0) + index for index in range(6)}


@pytest.fixture
def shards(tmp_path):
    """A model of six tensors in three shards."""
    write_model(tmp_path / "m.gguf", "llama", {"block_count": 6}, TENSORS, split_max_tensors=2)
    names = sorted(path.name for path in tmp_path.glob("*.gguf"))
    assert names == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    return tmp_path


def shard(folder, number):
    return folder / f"m-0000{number}-of-00003.gguf"


def assert_whole(source):
    assert source.architecture == "llama"
    assert source.metadata["llama.block_count"] == 6
    assert set(source.tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        out = torch.empty(8)
        source.read_into(name, out)
        assert torch.equal(out, tensor)


def test_any_shard_and_the_folder_open_the_model(shards):
    for path in (shard(shards, 1), shard(shards, 2), str(shard(shards, 3)), shards):
        source = open_gguf(path)
        assert_whole(source)
        assert source.path == str(path)
        assert [file.rsplit("/", 1)[1][:7] for file in source.files] == ["m-00001", "m-00002", "m-00003"]


def test_symlinks_keep_their_names(shards, tmp_path):
    snapshot, blobs = tmp_path / "snapshots" / "r", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number in (1, 2, 3):
        blob = blobs / f"{number:064x}"
        shutil.move(shard(shards, number), blob)
        (snapshot / f"m-0000{number}-of-00003.gguf").symlink_to(f"../../blobs/{blob.name}")
    assert_whole(open_gguf(snapshot / "m-00001-of-00003.gguf"))
    assert_whole(open_gguf(snapshot))


def test_a_missing_shard_is_named(shards):
    shard(shards, 3).unlink()
    for path in (shard(shards, 1), shards):
        with pytest.raises(WeightError, match="m-00003-of-00003"):
            open_gguf(path)


def test_swapped_shards_are_named(shards):
    shard(shards, 2).rename(shards / "other")
    shard(shards, 3).rename(shard(shards, 2))
    (shards / "other").rename(shard(shards, 3))
    for number in (1, 2):
        with pytest.raises(FormatError, match=r"m-00002-of-00003.*named as shard 2 of 3.*says 3 of 3"):
            open_gguf(shard(shards, number))


def test_a_renamed_shard_is_refused(shards):
    shard(shards, 1).rename(shards / "x.gguf")
    with pytest.raises(FormatError, match="one of 3 shards"):
        open_gguf(shards / "x.gguf")


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    for index in (0, 1):
        writer = gguf.GGUFWriter(tmp_path / f"d-0000{index + 1}-of-00002.gguf", "llama")
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", 2)
        writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    with pytest.raises(FormatError, match=r"d-00002-of-00002.*'token_embd.weight' is also in .*d-00001-of-00002"):
        open_gguf(tmp_path / "d-00001-of-00002.gguf")


def test_a_lone_first_shard_of_one(tmp_path):
    path = write_model(tmp_path / "x-00001-of-00001.gguf", "llama", {"block_count": 6}, TENSORS)
    assert_whole(open_gguf(path))
    assert_whole(open_gguf(tmp_path))


def test_a_folder_with_two_models_is_refused(shards):
    write_model(shards / "z.gguf", "llama", {"block_count": 1}, {"token_embd.weight": torch.ones(4, 4)})
    with pytest.raises(FormatError, match=r"2 models: m-00001-of-00003\.gguf, z\.gguf"):
        open_gguf(shards)
    assert_whole(open_gguf(shard(shards, 2)))


def test_nothing_there(tmp_path):
    with pytest.raises(WeightError, match=r"no \.gguf file"):
        open_gguf(tmp_path)
    with pytest.raises(WeightError, match="no such file"):
        open_gguf(tmp_path / "absent.gguf")
