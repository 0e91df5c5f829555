"""Weight files and folders that cannot be used: each fault with its code, place and remedy, by both doors."""

import os
import re
import struct

import pytest
import torch

from ktitan.errors import FormatError, IoError, WeightError
from ktitan.weights.opening import open_source
from ktitan.weights.safetensors_source import INDEX_NAME

from support.bad_input import (
    Bad,
    assert_refused,
    edit,
    json_edit,
    load,
    open_folder,
    plan,
    readable,
    without_rights,
    write,
)
from support.gguf_files import entry, raw_gguf
from support.good_models import copied, save_gguf

SINGLE = "model.safetensors"
PICKLED = "save_pretrained"


def shard(name):
    """An edit of the index: the norm is said to be in the file `name`."""
    return edit(
        json_edit(INDEX_NAME, lambda index: index["weight_map"].update({"model.norm.weight": name})), kind="shards"
    )


def without(*numbers):
    def step(folder):
        for number in numbers:
            (folder / f"model-0000{number}-of-00003.safetensors").unlink()

    return step


def instead(name, make):
    """A step that puts something else in place of a file."""

    def step(folder):
        (folder / name).unlink()
        make(folder / name)

    return step


def cut(count):
    def step(path):
        file = path / SINGLE if path.is_dir() else path
        file.write_bytes(file.read_bytes()[:-count])

    return step


def renamed(name):
    return edit(lambda folder: (folder / SINGLE).rename(folder / name))


def pickled_shards(folder):
    for file in folder.glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    (folder / INDEX_NAME).write_text((folder / INDEX_NAME).read_text().replace(".safetensors", ".bin"))


def there(name, make):
    """A row's maker: something at a path of its own."""

    def maker(models, place):
        make(place / name)
        return place / name

    return maker


def scalar_gguf(path):
    path.write_bytes(raw_gguf((), [entry("a", [], 0, 0)], b"\0" * 32))


def split_gguf(models, place):
    save_gguf(place / "m.gguf", split_max_tensors=8)
    return sorted(place.glob("m-*.gguf"))


def lost_gguf_shards(models, place):
    first, second, third, *_ = split_gguf(models, place)
    first.unlink(), second.unlink()
    return third


def broken_gguf_shards(models, place):
    first, second, third, *_ = split_gguf(models, place)
    for file in (second, third):
        file.write_bytes(file.read_bytes()[:-64])
    return first


INDEX = [
    Bad("outside", shard("../x.safetensors"), WeightError, INDEX_NAME, "'../x.*not a plain file", "do not trust"),
    Bad("absolute", shard("/etc/x.safetensors"), WeightError, INDEX_NAME, "'/etc/x.*not a plain", "do not trust"),
    Bad("winding", shard("sub/../../x"), WeightError, INDEX_NAME, "not a plain file name", "do not trust"),
    Bad("NUL", shard("a\0b.safetensors"), WeightError, INDEX_NAME, "not a plain file name", "do not trust"),
    Bad("endless name", shard("a" * 5000), WeightError, INDEX_NAME, "'a{80}', which is not a plain", "do not trust"),
    Bad("another file", shard("config.json"), FormatError, "config.json", "not a valid safetensors", "download"),
    Bad("lacks it", shard("model-00001-of-00003.safetensors"), WeightError, "^model.norm.weight$", "lacks it", "again"),
    Bad(
        "missing",
        edit(without(1, 3), kind="shards"),
        WeightError,
        INDEX_NAME,
        "00003-of-00003.* missing",
        "download",
        2,
    ),
    Bad("not JSON", edit(write(INDEX_NAME, "{"), kind="shards"), FormatError, INDEX_NAME, "not valid JSON", "download"),
    Bad("bytes", edit(write(INDEX_NAME, b"\xff\xfe"), kind="shards"), FormatError, INDEX_NAME, "utf-8", "download"),
    Bad(
        "a list", edit(write(INDEX_NAME, "[]"), kind="shards"), FormatError, INDEX_NAME, "not a JSON object", "download"
    ),
    Bad("no map", edit(write(INDEX_NAME, "{}"), kind="shards"), FormatError, INDEX_NAME, "weight_map", "download"),
    Bad(
        "deep", edit(write(INDEX_NAME, '{"a":' * 99999), kind="shards"), FormatError, INDEX_NAME, "too deep", "download"
    ),
    Bad("pickled", edit(pickled_shards, kind="shards"), WeightError, INDEX_NAME, "00002.*pickled", PICKLED, 3),
    Bad(
        "broken link",
        edit(instead("model-00002-of-00003.safetensors", lambda file: file.symlink_to("/nowhere")), kind="shards"),
        WeightError,
        INDEX_NAME,
        "00002-of-00003.safetensors is missing",
        "download",
    ),
    Bad(
        "broken shards",
        edit(
            write("model-00001-of-00003.safetensors", b"12345678"),
            write("model-00003-of-00003.safetensors", b""),
            kind="shards",
        ),
        FormatError,
        "00003-of-00003",
        "not a valid safetensors file",
        "download it again",
        2,
    ),
]
FOLDERS = [
    Bad("empty folder", there("m", os.mkdir), WeightError, "/m$", "no weights found", "model.safetensors"),
    Bad("folder as x.gguf", there("x.gguf", os.mkdir), WeightError, "x.gguf$", "no weights found", r"\.gguf file"),
    Bad("text file", there("x.txt", lambda p: p.write_text("x")), WeightError, "x.txt$", "not a weights file", "give"),
    Bad("pickled file", there("x.bin", lambda p: p.write_text("x")), WeightError, "x.bin$", "pickled", PICKLED),
    Bad("nothing", there("x", lambda p: None), WeightError, "/x$", "no such file or folder", "hub id"),
    Bad(
        "broken link",
        there("x", lambda p: p.symlink_to("/nowhere")),
        WeightError,
        "/x$",
        "a link to '/nowhere'",
        "give",
    ),
    Bad("pipe", there("x", os.mkfifo), WeightError, "/x$", "a pipe, not a regular file", "give a folder"),
    Bad("pipe as GGUF", there("x.gguf", os.mkfifo), WeightError, "x.gguf$", "a pipe", "give a folder"),
    Bad("device", lambda models, place: "/dev/zero", WeightError, "/dev/zero", "a device", "give a folder"),
    Bad("endless name", lambda models, place: "x" * 5000, IoError, "x{99}", "name too long", "check the path"),
    Bad("no hub's name", lambda models, place: "a/b..c", WeightError, "a/b..c", "no such file or folder", "a hub id"),
    Bad("NUL", lambda models, place: "a\0b", IoError, "a", "null byte", "check the path"),
    Bad("no path", lambda models, place: "", WeightError, "MODEL", "not a model", "give a folder"),
    Bad("a number", lambda models, place: 5, WeightError, "MODEL", "5 is not a model", "give a folder"),
    Bad(
        "GGUF not there", lambda m, p: (m.folder, p / "x.gguf"), WeightError, "x.gguf", "no such file", "check the path"
    ),
    Bad("GGUF a number", lambda m, p: (m.folder, 5), WeightError, "gguf_path", "5 is not a path", "give a .gguf"),
]
WEIGHTS = [
    Bad("cut", edit(cut(7)), FormatError, SINGLE, "not a valid safetensors file", "download it again"),
    Bad("empty", edit(write(SINGLE, "")), FormatError, SINGLE, "not a valid safetensors file", "download it again"),
    Bad("random", edit(write(SINGLE, os.urandom(500))), FormatError, SINGLE, "not a valid", "download it again"),
    Bad(
        "huge", edit(write(SINGLE, struct.pack("<Q", 1 << 62) + b"{}")), FormatError, SINGLE, "not a valid", "download"
    ),
    Bad("a pipe", edit(instead(SINGLE, os.mkfifo)), WeightError, SINGLE, "a pipe, not a regular file", "give"),
    Bad(
        "a device", edit(instead(SINGLE, lambda f: f.symlink_to("/dev/zero"))), WeightError, SINGLE, "a device", "give"
    ),
    Bad(
        "a broken link",
        edit(instead(SINGLE, lambda f: f.symlink_to("/x"))),
        WeightError,
        SINGLE,
        "a link to '/x'",
        "check",
    ),
    Bad("GGUF cut", edit(cut(9), kind="gguf"), FormatError, "model.gguf", "ends at byte", "copy it again"),
    Bad(
        "GGUF random",
        there("x.gguf", lambda p: p.write_bytes(os.urandom(99))),
        FormatError,
        "x.gguf",
        "not a GGUF",
        "give",
    ),
    Bad("GGUF empty", there("x.gguf", lambda p: p.write_bytes(b"")), FormatError, "x.gguf", "not a GGUF", "give"),
    Bad("GGUF scalar", there("x.gguf", scalar_gguf), FormatError, "x.gguf", "'a' has 0 dimensions", "copy it again"),
    Bad("GGUF shards lost", lost_gguf_shards, WeightError, "m-00002-of-0000", "shard is missing", "download", 2),
    Bad("GGUF shards cut", broken_gguf_shards, FormatError, "m-00003-of-0000", "ends at byte", "copy it again", 2),
]
# Only `load` minds these: a folder with a config alone can be planned.
PICKLED_FOLDERS = [
    Bad(name, renamed(name), WeightError, "model$", "no weights found", PICKLED)
    for name in ("pytorch_model.bin", "x.pt", "consolidated.00.pth", "pytorch_model.bin.index.json")
]


@pytest.mark.parametrize("bad", [*INDEX, *FOLDERS, *WEIGHTS], ids=lambda bad: bad.name)
def test_by_both_doors(models, tmp_path, bad):
    given = bad.make(models, tmp_path)
    for door in (load, plan):
        assert_refused(bad, given, door)


@pytest.mark.parametrize("bad", PICKLED_FOLDERS, ids=lambda bad: bad.name)
def test_pickled_checkpoints(models, tmp_path, bad):
    assert_refused(bad, bad.make(models, tmp_path), load)


def test_an_index_of_pickles_by_its_own_name(tmp_path):
    file = tmp_path / "pytorch_model.bin.index.json"
    file.write_text('{"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}')
    with pytest.raises(WeightError, match="pickled") as caught:
        open_source(file)
    assert caught.value.where == str(file) and PICKLED in caught.value.remedy


def locked(name):
    return lambda path: (path / name if name else path).chmod(0)


PERMISSIONS = [
    Bad("weights", edit(locked(SINGLE)), IoError, f"/{SINGLE}$", "Permission denied", "right to"),
    Bad("config", edit(locked("config.json")), IoError, "/config.json$", "Permission denied", "right to"),
    Bad("folder", edit(locked("")), IoError, "/model/config.json$", "Permission denied", "right to"),
    Bad("listing", edit(lambda path: path.chmod(0o111)), IoError, "/model$", "cannot be listed: Perm", "right to"),
    Bad("index", edit(locked(INDEX_NAME), kind="shards"), IoError, INDEX_NAME, "Permission denied", "right to"),
    Bad("GGUF", edit(locked(""), kind="gguf"), IoError, "/model.gguf$", "Permission denied", "right to"),
    Bad(
        "shards",
        edit(*(locked(f"model-0000{number}-of-00003.safetensors") for number in (1, 2, 3)), kind="shards"),
        IoError,
        "00003-of-00003",
        "Permission denied",
        "right to",
        3,
    ),
]


@pytest.mark.parametrize("bad", PERMISSIONS, ids=lambda bad: bad.name)
def test_no_permission(models, bad):
    with open_folder() as place:
        given = edit(readable, *bad.make.steps, kind=bad.make.kind)(models, place)
        with without_rights():
            for door in (load, plan):
                assert_refused(bad, given, door)


def test_a_link_out_of_the_folder_is_lawful_as_in_the_hubs_cache(models, tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "r"
    blobs.mkdir()
    copied(models.shards, snapshot)
    for number, file in enumerate(sorted(snapshot.glob("*.safetensors"))):
        file.rename(blobs / str(number))
        file.symlink_to(f"../../blobs/{number}")
    assert set(open_source(snapshot).tensors) == set(open_source(models.shards).tensors)


def test_too_many_open_files(models, monkeypatch):
    """What the system refuses for reasons of its own is an error with a remedy, too."""
    source = open_source(models.folder)

    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("ktitan.weights.files.os.open", refuse)
    with pytest.raises(IoError, match="Too many open files") as caught:
        source.read_into("model.norm.weight", torch.empty(32))
    assert caught.value.where.endswith(SINGLE) and "ulimit" in caught.value.remedy


@pytest.mark.parametrize("kind", ["folder", "gguf"])
@pytest.mark.parametrize("how", ["replaced", "rewritten", "grown", "cut"])
def test_a_file_that_is_another_one_when_it_is_read(models, tmp_path, kind, how):
    path = edit(kind=kind)(models, tmp_path)
    file = path / SINGLE if path.is_dir() else path
    source = open_source(path)
    content = file.read_bytes()
    if how == "replaced":
        (tmp_path / "new").write_bytes(content)
        os.replace(tmp_path / "new", file)
    elif how == "rewritten":
        status = file.stat()
        file.write_bytes(content[:-4] + b"\1\2\3\4")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    else:
        file.write_bytes(content + b"\0" if how == "grown" else content[:-8])
    name = next(iter(source.tensors))
    with pytest.raises(IoError) as caught:
        source.read_into(name, torch.empty(source.tensors[name].shape))
    assert caught.value.where == str(file) and "load the model again" in caught.value.remedy
    assert re.search("replaced or changed", caught.value.message)
