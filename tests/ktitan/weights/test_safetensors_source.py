"""Headers from strangers: legal oddities are read, everything else is refused before a size is used."""

import json
import struct
import time

import pytest
import torch
from safetensors.torch import save_file

from ktitan.errors import FormatError, IoError, WeightError
from ktitan.weights.opening import open_source
from ktitan.weights.safetensors_source import INDEX_NAME, open_safetensors


def write_raw(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def read(source, name, dtype=torch.float32):
    info = source.tensors[name]
    out = torch.empty(info.shape, dtype=dtype)
    source.read_into(name, out)
    return out


LEGAL = {
    "empty tensor": ({"a": entry("F32", [0, 8], 0, 0)}, b"", {"a": torch.empty(0, 8)}),
    "scalar": ({"a": entry("F32", [], 0, 4)}, struct.pack("<f", 2.5), {"a": torch.tensor(2.5)}),
    "no tensors": ({}, b"", {}),
    "metadata": ({"__metadata__": {}, "a": entry("U8", [2], 0, 2)}, b"\x01\x02", {"a": torch.tensor([1.0, 2.0])}),
    "odd offset": (
        {"a": entry("U8", [1], 0, 1), "b": entry("BF16", [2], 1, 5)},
        b"\x07" + struct.pack("<HH", 0x3F80, 0x4000),
        {"a": torch.tensor([7.0]), "b": torch.tensor([1.0, 2.0])},
    ),
    "keys out of order": (
        {"b": entry("F32", [1], 4, 8), "a": entry("F32", [1], 0, 4)},
        struct.pack("<ff", 1.0, 2.0),
        {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])},
    ),
}


@pytest.mark.parametrize("case", list(LEGAL))
def test_legal_oddities(tmp_path, case):
    header, data, wanted = LEGAL[case]
    source = open_safetensors(write_raw(tmp_path / "m.safetensors", header, data))
    assert set(source.tensors) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(read(source, name), tensor)


ILLEGAL = {
    "metadata value is a number": ({"__metadata__": {"a": 3}}, b""),
    "key twice": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"\0",
    ),
    "overlap": ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"\0" * 3),
    "hole at front": ({"a": entry("U8", [1], 1, 2)}, b"\0\0"),
    "trailing bytes": ({"a": entry("U8", [1], 0, 1)}, b"\0\0\0"),
    "shape larger than data": ({"a": entry("F32", [1000, 1000], 0, 16)}, b"\0" * 16),
    "begin after end": ({"a": entry("U8", [1], 1, 0)}, b"\0"),
    "unknown dtype": ({"a": entry("Q9", [1], 0, 1)}, b"\0"),
    "not json": (b"{{{{", b""),
}


@pytest.mark.parametrize("case", list(ILLEGAL))
def test_illegal_headers_are_refused_by_name(tmp_path, case):
    header, data = ILLEGAL[case]
    path = write_raw(tmp_path / "m.safetensors", header, data)
    with pytest.raises(FormatError) as caught:
        open_safetensors(path)
    assert str(path) in str(caught.value) and caught.value.remedy


def test_huge_header_length_and_tiny_files(tmp_path):
    with pytest.raises(FormatError):
        open_safetensors(write_raw(tmp_path / "a.safetensors", {}, length=1 << 62))
    (tmp_path / "b.safetensors").write_bytes(b"abc")
    with pytest.raises(FormatError):
        open_safetensors(tmp_path / "b.safetensors")


def shards(folder):
    save_file({"a": torch.ones(2)}, folder / "m-1.safetensors")
    save_file({"b": torch.ones(3)}, folder / "m-2.safetensors")
    return {"a": "m-1.safetensors", "b": "m-2.safetensors"}


def write_index(folder, weight_map):
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_one_source(tmp_path):
    write_index(tmp_path, shards(tmp_path))
    source = open_source(tmp_path)
    assert torch.equal(read(source, "b"), torch.ones(3))


@pytest.mark.parametrize("outside", ["../m.safetensors", "/etc/m.safetensors", "sub/../../m.safetensors", ".."])
def test_names_that_leave_the_folder_are_refused_before_opening(tmp_path, outside):
    write_index(tmp_path, {"a": outside})
    with pytest.raises(WeightError, match="not a plain file name"):
        open_source(tmp_path)


def test_a_link_out_of_the_folder_is_lawful(tmp_path):
    (tmp_path / "blobs").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "blobs" / "0123")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(tmp_path / "blobs" / "0123")
    assert torch.equal(read(open_source(tmp_path / "snapshot"), "a"), torch.ones(2))


def test_all_faults_of_an_index_come_at_once(tmp_path):
    names = shards(tmp_path)
    write_index(tmp_path, {**names, "c": "m-1.safetensors", "d": "m-2.safetensors"})
    with pytest.raises(WeightError) as caught:
        open_source(tmp_path)
    assert [fault.where for fault in caught.value.faults] == ["c", "d"]
    write_index(tmp_path, {**names, "e": "m-3.safetensors", "f": "m-4.safetensors"})
    with pytest.raises(WeightError) as caught:
        open_source(tmp_path)
    assert "m-3" in str(caught.value) and "m-4" in str(caught.value)


def test_a_tensor_in_two_shards(tmp_path):
    shards(tmp_path)
    save_file({"b": torch.zeros(3)}, tmp_path / "m-3.safetensors")
    with pytest.raises(WeightError, match="m-2"):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000, "m-1.safetensors\n"])
def test_shard_names_that_no_file_can_have(tmp_path, name):
    shards(tmp_path)
    write_index(tmp_path, {"a": name})
    with pytest.raises(WeightError, match="not a plain file name") as caught:
        open_source(tmp_path)
    assert len(str(caught.value).encode("utf-8")) < 1000


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, '{"weight_map":' * 100_000])
def test_an_index_nested_without_end(tmp_path, text):
    (tmp_path / INDEX_NAME).write_text(text)
    with pytest.raises(FormatError, match=r"index\.json: not valid JSON"):
        open_source(tmp_path)


def test_a_doubled_key_among_many_is_found_in_time(tmp_path):
    """Comparing each with each took minutes for 100 thousand names."""
    one = b'"%06d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    numbers = [*range(100_000), 99_999]
    path = write_raw(tmp_path / "m.safetensors", b"{" + b",".join(one % number for number in numbers) + b"}")
    start = time.process_time()
    with pytest.raises(FormatError, match="099999"):
        open_source(path)
    assert time.process_time() - start < 10


def test_a_header_of_a_hundred_megabytes(tmp_path):
    path = write_raw(tmp_path / "m.safetensors", b"{}" + b" " * (90 << 20))
    with pytest.raises(FormatError, match="at most"):
        open_source(path)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "{"])
def test_broken_index(tmp_path, content):
    (tmp_path / INDEX_NAME).write_text(content)
    with pytest.raises(FormatError, match="index"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("file", "remedy"),
    [("pytorch_model.bin", "save_pretrained"), ("m.txt", "model.safetensors"), (None, "model.safet")],
)
def test_folders_without_weights_name_the_remedy(tmp_path, file, remedy):
    if file:
        (tmp_path / file).write_bytes(b"x")
    with pytest.raises(WeightError) as caught:
        open_source(tmp_path)
    assert remedy in caught.value.remedy


def test_missing_path():
    with pytest.raises(WeightError, match="no such file"):
        open_source("/does/not/exist")


def test_path_with_spaces_and_accents(tmp_path):
    folder = tmp_path / "mein Modell é ü"
    folder.mkdir()
    save_file({"a": torch.arange(3.0)}, folder / "model.safetensors")
    assert torch.equal(read(open_source(folder), "a"), torch.arange(3.0))


def test_a_file_that_shrinks_after_opening(tmp_path):
    save_file({"a": torch.ones(1000)}, tmp_path / "model.safetensors")
    source = open_source(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(IoError, match="ends 8 bytes early"):
        read(source, "a")


def test_rows_and_dtypes(tmp_path):
    tensor = torch.randn(4, 6, 5)
    save_file({"a": tensor, "h": tensor.half()}, tmp_path / "model.safetensors")
    source = open_source(tmp_path)
    out = torch.empty(6, 5)
    source.read_into("a", out, first_row=12)
    assert torch.equal(out, tensor[2])
    assert torch.equal(read(source, "h", torch.bfloat16), tensor.half().bfloat16())
    wide = torch.zeros(4, 6, 10)
    source.read_into("a", wide[..., ::2])
    assert torch.equal(wide[..., ::2], tensor)
    assert not wide[..., 1::2].any()


def test_spans_say_where_the_bytes_are(tmp_path):
    save_file({"a": torch.arange(12.0).view(3, 4), "b": torch.arange(5)}, tmp_path / "model.safetensors")
    source = open_safetensors(tmp_path)
    info = source.tensors["a"]
    (span,) = source.spans(info, 16, 20)
    raw = (tmp_path / "model.safetensors").read_bytes()
    assert raw[span.offset : span.offset + span.nbytes] == bytes(source.read_bytes(info, 16, 20))
    assert span.file in source.stamps and source.stamps[span.file].size == len(raw)
