"""Headers: what is valid gives exact values, what is not is refused by name, at once and without a memory jump."""

import struct
import tracemalloc

import numpy as np
import pytest

from ktitan.errors import FormatError
from ktitan.weights.gguf_header import read_header
from ktitan.weights.gguf_source import open_gguf

from support.gguf_files import entry, pair, raw_gguf, text

F32, Q4_0 = 0, 2
UINT32, INT64, STRING, ARRAY = 4, 11, 8, 9


def write(folder, content):
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


def two_tensors(alignment, stated=None):
    """a = 0..4 and b = 100..103, the second one at the next multiple of `alignment`."""
    first = np.arange(5, dtype=np.float32).tobytes()
    second = np.arange(100, 104, dtype=np.float32).tobytes()
    start = -(-len(first) // alignment) * alignment
    pairs = [] if stated is None else [pair("general.alignment", *stated)]
    entries = [entry("a", [5], F32, 0), entry("b", [4], F32, start)]
    return raw_gguf(pairs, entries, first.ljust(start, b"\0") + second, alignment)


@pytest.mark.parametrize(("alignment", "stated"), [(32, None), (64, 64), (8, 8), (1, 1)])
def test_alignment_moves_the_data(tmp_path, alignment, stated):
    packed = None if stated is None else (UINT32, struct.pack("<I", stated))
    source = open_gguf(write(tmp_path, two_tensors(alignment, packed)))
    for name, values in {"a": [0, 1, 2, 3, 4], "b": [100, 101, 102, 103]}.items():
        info = source.tensors[name]
        assert np.frombuffer(source.read_bytes(info, 0, info.nbytes), np.float32).tolist() == values


@pytest.mark.parametrize(
    "stated", [(UINT32, struct.pack("<I", 0)), (UINT32, struct.pack("<I", 48)), (INT64, struct.pack("<q", 64))]
)
def test_wrong_alignment_is_refused_by_name(tmp_path, stated):
    with pytest.raises(FormatError, match=r"model\.gguf.*general\.alignment"):
        read_header(write(tmp_path, two_tensors(64, stated)))


def one_tensor(name="a", dims=(8,), kind=F32, offset=0, pairs=(), data=b"\0" * 32, **options):
    return raw_gguf(pairs, [entry(name, dims, kind, offset)], data, **options)


def swapped():
    """A big-endian file: the same content with every number the other way round."""
    head = b"GGUF" + struct.pack(">IQQ", 3, 0, 1)
    key = b"general.architecture"
    return head + struct.pack(">Q", len(key)) + key + struct.pack(">IQ", STRING, 5) + b"llama"


BROKEN = {
    "cut": (one_tensor()[:-12], "ends at byte"),
    "tensor twice": (
        raw_gguf((), [entry("a", [4], F32, 0), entry("a", [4], F32, 32)], b"\0" * 64),
        "'a' is there twice",
    ),
    "key twice": (one_tensor(pairs=[pair("k", UINT32, b"\1\0\0\0")] * 2), "'k' is there twice"),
    "empty key": (one_tensor(pairs=[pair("", UINT32, b"\1\0\0\0")]), "is empty"),
    "big endian": (swapped(), "big endian"),
    "far offset": (one_tensor(offset=1 << 40), "ends at byte"),
    "huge dimensions": (one_tensor(dims=(1 << 33, 1 << 33)), "ends at byte"),
    "tensor count": (raw_gguf(counts=(1 << 60, 0))[:24], "do not fit"),
    "pair count": (raw_gguf(counts=(0, 1 << 60)), "do not fit"),
    "string length": (one_tensor(pairs=[text("k") + struct.pack("<IQ", STRING, 1 << 63)]), "value of 'k'"),
    "array length": (one_tensor(pairs=[text("k") + struct.pack("<IIQ", ARRAY, UINT32, 1 << 60)]), "value of 'k'"),
    "string array length": (
        one_tensor(pairs=[text("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 40)]),
        "value of 'k'",
    ),
    "half a block": (one_tensor(dims=(40,), kind=Q4_0), "not a whole number"),
    "unknown tensor type": (one_tensor(kind=999), "type number 999"),
    "unknown value type": (one_tensor(pairs=[pair("k", 77, b"")]), "unknown type 77"),
    "nested array": (one_tensor(pairs=[text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1)]), "unknown type 9"),
    "five dimensions": (one_tensor(dims=(1, 1, 1, 1, 1)), "5 dimensions"),
    "crooked offset": (one_tensor(offset=4, data=b"\0" * 64), "multiple of 32"),
    "overlap": (raw_gguf((), [entry("a", [16], F32, 0), entry("b", [8], F32, 32)], b"\0" * 64), "overlap"),
    "not UTF-8": (one_tensor(pairs=[struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<II", UINT32, 1)]), "UTF-8"),
    "version 1": (one_tensor(version=1), "version 1"),
    "version 9": (one_tensor(version=9), "version 9"),
    "empty file": (b"", "not a GGUF file"),
    "another file": (b"PK\x03\x04" + b"\0" * 64, "not a GGUF file"),
    "header cut": (one_tensor()[:70], "left"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused(tmp_path, case):
    content, cause = BROKEN[case]
    path = write(tmp_path, content)
    tracemalloc.start()
    with pytest.raises(FormatError) as caught:
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cause in caught.value.message
    assert str(path) in caught.value.where
    assert caught.value.faults[0].remedy
    assert peak < 8 << 20


def test_every_prefix_of_a_file_is_refused_or_whole(tmp_path):
    content = one_tensor(pairs=[pair("k", STRING, text("value"))])
    for length in range(len(content)):
        with pytest.raises(FormatError):
            read_header(write(tmp_path, content[:length]))
    assert read_header(write(tmp_path, content)).metadata["k"] == "value"


def test_values_of_all_types(tmp_path):
    values = {0: ("B", 200), 1: ("b", -3), 2: ("H", 60000), 3: ("h", -300), 5: ("i", -70000), 6: ("f", 0.5)}
    values |= {7: ("?", True), 10: ("Q", 1 << 63), 11: ("q", -(1 << 62)), 12: ("d", 0.1)}
    pairs = [pair(f"k{kind}", kind, struct.pack(f"<{code}", value)) for kind, (code, value) in values.items()]
    pairs.append(pair("list", ARRAY, struct.pack("<IQ", UINT32, 3) + struct.pack("<3I", 7, 8, 9)))
    pairs.append(pair("words", ARRAY, struct.pack("<IQ", STRING, 2) + text("é") + text("")))
    metadata = read_header(write(tmp_path, raw_gguf(pairs))).metadata
    assert {kind: metadata[f"k{kind}"] for kind in values} == {kind: value for kind, (_, value) in values.items()}
    assert metadata["list"] == [7, 8, 9]
    assert metadata["words"] == ["é", ""]


def test_shapes_are_in_torch_order(tmp_path):
    path = write(tmp_path, one_tensor(dims=(32, 3, 2), kind=Q4_0, data=b"\0" * 108))
    info = read_header(path).tensors["a"]
    assert (info.shape, info.format, info.nbytes) == ((2, 3, 32), "q4_0", 108)


def huge(pairs=b"", counts=(0, 1), size=256 << 20):
    """A sparse file: zeros to its end, which cost nothing to store."""
    return b"GGUF" + struct.pack("<IQQ", 3, *counts) + pairs, size


NUMBERS = text("k") + struct.pack("<IIQ", ARRAY, 0, 200 << 20)
HUGE = {
    "array of numbers": (huge(NUMBERS), "all arrays together"),
    "array of strings": (huge(text("k") + struct.pack("<IIQ", ARRAY, STRING, 30 << 20)), "all arrays together"),
    "many small arrays": (huge((text("k") + struct.pack("<IIQ", ARRAY, 0, 0)) * 70000, (0, 70000)), "at most"),
    "zeros for tensors": (huge(counts=(1 << 20, 0)), "'' has 0 dimensions"),
    "too many tensors": (huge(counts=(10 << 20, 0)), "at most"),
    "long key": (huge(struct.pack("<Q", 100 << 20)), "is 104857600 bytes long"),
    "long name": (huge(struct.pack("<Q", 100 << 20), (1, 0)), "is 104857600 bytes long"),
}


@pytest.mark.parametrize("case", HUGE)
def test_a_file_that_would_unfold_to_gigabytes_is_refused_at_once(tmp_path, case):
    (content, size), cause = HUGE[case]
    path = write(tmp_path, content)
    with open(path, "r+b") as file:
        file.truncate(size)
    tracemalloc.start()
    with pytest.raises(FormatError) as caught:
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cause in caught.value.message and len(str(caught.value)) < 1000
    assert peak < 64 << 20
