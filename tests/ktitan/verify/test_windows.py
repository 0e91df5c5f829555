"""Windows to score: what is read, and what is refused of files and arrays."""

import numpy as np
import pytest

from ktitan.errors import FormatError, UnsupportedError, WeightError
from ktitan.verify.windows import check_windows, windows_of_ids, windows_of_text


def text_file(folder, text):
    path = folder / "text.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def ids_file(folder, array, **options):
    np.save(folder / "ids.npy", array, **options)
    return folder / "ids.npy"


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16, np.uint8])
def test_any_integers_are_ids(tmp_path, dtype):
    ids = np.arange(12).reshape(3, 4).astype(dtype)
    rows, where = windows_of_ids(ids_file(tmp_path, ids))
    assert [row.tolist() for row in rows] == ids.tolist()
    assert where == str(tmp_path / "ids.npy")
    assert [row.tolist() for row in windows_of_ids(ids)[0]] == ids.tolist()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 4), np.float32), ["holds float32, not integers"]),
        (np.zeros(4, bool), ["holds bool, not integers", "has shape (4,), not [rows, tokens]"]),
        (np.zeros((0, 4), int), ["has shape (0, 4): at least one row of two tokens is needed"]),
        (np.zeros((4, 1), int), ["has shape (4, 1): at least one row of two tokens is needed"]),
    ],
)
def test_arrays_that_are_no_ids(tmp_path, array, words):
    for given in (array, ids_file(tmp_path, array)):
        with pytest.raises(UnsupportedError) as caught:
            windows_of_ids(given)
        assert [fault.message for fault in caught.value.faults] == words


def test_files_that_hold_no_array(tmp_path):
    with pytest.raises(WeightError, match="cannot open"):
        windows_of_ids(tmp_path / "nowhere.npy")
    with pytest.raises(WeightError, match="cannot open"):
        windows_of_ids(tmp_path)
    with pytest.raises(FormatError, match="objects in dtype"):
        windows_of_ids(ids_file(tmp_path, np.array([{}], object), allow_pickle=True))
    np.savez(tmp_path / "many.npz", a=np.zeros((2, 2), int))
    with pytest.raises(FormatError, match="not an array of numbers"):
        windows_of_ids(tmp_path / "many.npz")
    whole = ids_file(tmp_path, np.zeros((8, 8), int)).read_bytes()
    for broken in (b"", b"no array", b"\x93NUMPY\x01\x00", whole[:40], whole[:-100], b"PK\x03\x04 not a zip"):
        (tmp_path / "broken.npy").write_bytes(broken)
        with pytest.raises(FormatError):
            windows_of_ids(tmp_path / "broken.npy")


def test_ids_beyond_the_vocabulary_are_named_by_row():
    rows, where = windows_of_ids([[1, 2, 3], [4, 10, -1], [0, 9, 99]])
    with pytest.raises(UnsupportedError) as caught:
        check_windows(rows, 10, where)
    assert [str(fault.where) for fault in caught.value.faults] == ["ids: row 1", "ids: row 2"]
    assert caught.value.faults[0].message == "2 ids are not below the vocabulary's 10: 10, -1"
    check_windows(rows[:1], 10, where)


def test_a_text_is_cut_into_whole_windows(rig, tmp_path):
    rows, _ = windows_of_text(text_file(tmp_path, "abcdefgh"), rig.byte_tokenizer(), 3)
    assert [bytes(row.tolist()) for row in rows] == [b"abc", b"def"]
    rows, _ = windows_of_text(text_file(tmp_path, "é"), rig.byte_tokenizer(), 30)
    assert [bytes(row.tolist()) for row in rows] == ["é".encode()]


def test_every_window_begins_as_a_text_does(rig, tmp_path):
    tokenizer = rig.byte_tokenizer()
    plain = type(tokenizer).__call__

    class Starting(type(tokenizer)):
        def __call__(self, text, add_special_tokens=True, **kwargs):
            found = plain(self, text, add_special_tokens=False, **kwargs)
            return {"input_ids": [256, *found["input_ids"]] if add_special_tokens else found["input_ids"]}

    tokenizer.__class__ = Starting
    rows, _ = windows_of_text(text_file(tmp_path, "abcdefgh"), tokenizer, 3)
    assert [row.tolist() for row in rows] == [[256, *pair] for pair in (b"ab", b"cd", b"ef", b"gh")]


@pytest.mark.parametrize(
    ("text", "window", "kind", "words"),
    [
        (b"a\xff", 4, FormatError, "byte 1 is wrong"),
        (b"a", 4, UnsupportedError, "fewer than two"),
        (b"", 4, UnsupportedError, "fewer than two"),
        (b"abc", 1, UnsupportedError, "nothing to score"),
    ],
)
def test_texts_that_cannot_be_scored(rig, tmp_path, text, window, kind, words):
    with pytest.raises(kind, match=words):
        windows_of_text(text_file(tmp_path, text), rig.byte_tokenizer(), window)


def test_a_text_that_is_not_there(rig, tmp_path):
    with pytest.raises(WeightError, match="cannot open"):
        windows_of_text(tmp_path / "nowhere", rig.byte_tokenizer(), 4)
