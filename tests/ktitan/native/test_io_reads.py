"""Every way of reading gives the same bytes: odd offsets, page edges, the end of the file, hundreds at once."""

import ctypes
import random
import tempfile
from pathlib import Path

import pytest

from ktitan.errors import IoError, UnsupportedError
from ktitan.native.io import PAGE, IoEngine, huge_buffer, layout

from support.io_rig import MODES, made, random_ranges, read_all

PIECE = 64 << 10


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """(path, its bytes); it ends within a page."""
    path = tmp_path_factory.mktemp("io") / "weights.bin"
    return path, made(path, (1 << 20) + 17)


@pytest.fixture
def in_memory():
    """A folder on tmpfs."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def edges(file, size):
    """Ranges around the edges of pages, pieces and the file."""
    marks = [0, 1, PAGE - 1, PAGE, PAGE + 1, PIECE - 1, PIECE, PIECE + 1, size - PAGE, size - 18, size - 17, size - 1]
    spans = [1, 17, PAGE - 1, PAGE, PAGE + 1, PIECE, PIECE + 1, 3 * PIECE + 5]
    return [(file, at, min(span, size - at)) for at in marks for span in spans] + [(file, 0, size), (file, 5, 0)]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("depth", [0, 1, 3, 256])
@pytest.mark.parametrize("mode", MODES)
def test_reads_give_the_files_bytes(native, file, mode, depth, direct):
    path, data = file
    with IoEngine(mode, direct, depth, PIECE) as engine:
        number = engine.add(path)
        ranges = edges(number, len(data)) + random_ranges(number, len(data), 300, 3 * PIECE)
        random.shuffle(ranges)
        assert read_all(engine, ranges) == [data[at : at + size] for _, at, size in ranges]
        counters = engine.counters()
    assert counters["uring"] == (mode == "io_uring") and counters["files"] == 1
    assert counters["wanted_bytes"] == sum(size for _, _, size in ranges) <= counters["read_bytes"]
    assert counters["busy_ns"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_a_file_in_memory_is_read_through_the_cache(native, in_memory, file, mode):
    """Beside one on a drive: each has a queue of its own."""
    path, data = file
    other = in_memory / "weights.bin"
    contents = [data, made(other, 300_001)]
    with IoEngine(mode, piece_bytes=PIECE) as engine:
        files = [engine.add(path), engine.add(other)]
        ranges = [one for number in files for one in random_ranges(number, len(contents[number]), 100, 2 * PIECE)]
        random.shuffle(ranges)
        assert read_all(engine, ranges) == [contents[number][at : at + size] for number, at, size in ranges]
        assert engine.counters()["direct_files"] <= 1


@pytest.mark.parametrize("mode", MODES)
def test_registered_memory_gets_the_same_bytes(native, file, mode):
    path, data = file
    with IoEngine(mode, piece_bytes=PIECE) as engine:
        ranges = random_ranges(engine.add(path), len(data), 100, 2 * PIECE)
        places, needed = layout(ranges)
        buffer, unregistered = huge_buffer(needed), huge_buffer(needed)
        assert engine.register(buffer, needed) in {mode == "io_uring", False}
        for target in (buffer, unregistered):
            engine.read(ranges, target)
            found = [target[at : at + size] for at, (_, _, size) in zip(places, ranges, strict=True)]
            assert found == [data[at : at + size] for _, at, size in ranges]
    with IoEngine(mode) as engine:
        assert not engine.register(huge_buffer(PAGE), 2 << 30)  # more than a buffer may have


@pytest.mark.parametrize("mode", MODES)
def test_what_is_no_range_of_a_file_fails_alone(native, file, mode):
    path, data = file
    size, buffer = len(data), huge_buffer(1 << 20)
    with IoEngine(mode, piece_bytes=PIECE) as engine:
        number = engine.add(path)
        wrong = [
            (number, size - 3, 4),
            (number, size + PAGE, 1),
            (number + 1, 0, 1),
            (-1, 0, 1),
            (number, 2**63 - 2, 1),
        ]
        good = (number, 77, 7)
        with pytest.raises(IoError) as caught:
            engine.read([*wrong, good], buffer)
        assert len(caught.value.faults) == len(wrong)
        assert all(fault.remedy for fault in caught.value.faults)
        at = layout([*wrong, good])[0][-1]
        assert buffer[at : at + 7] == data[77:84]


def test_wrong_arguments_are_refused(native, file, tmp_path):
    with pytest.raises(UnsupportedError, match="mode"):
        IoEngine("sometimes")
    engine = IoEngine()
    for path, stands in ((tmp_path / "none", "No such"), (tmp_path, "directory"), (Path("/dev/null"), "Invalid")):
        with pytest.raises(IoError, match=stands):
            engine.add(path)
    number = engine.add(file[0])
    with pytest.raises(UnsupportedError, match="huge_buffer"):
        engine.read([(number, 0, 9)], huge_buffer(100))
    engine.close()
    engine.close()
    with pytest.raises(UnsupportedError, match="closed"):
        engine.counters()


def test_a_huge_buffer_begins_at_a_huge_page(native):
    for nbytes in (1, 4097, 5 << 20):
        view = huge_buffer(nbytes)
        assert view.nbytes == nbytes and ctypes.addressof(ctypes.c_char.from_buffer(view)) % (2 << 20) == 0


@pytest.mark.parametrize("mode", MODES)
def test_depth_and_length_are_tried_out_and_then_stay(native, tmp_path, mode):
    """Reads of the kernel for the same 32 MiB: of 1 MiB at first, then of the lengths that are tried."""
    path = tmp_path / "weights.bin"
    data, size = made(path, 32 << 20), 32 << 20
    buffer, counts = huge_buffer(size), []
    with IoEngine(mode) as engine:
        number = engine.add(path)
        # The choices take turns, so that six alike in a row come only when one of them is kept.
        while len(counts) < 200 and (len(counts) < 32 or len(set(counts[-6:])) > 1):
            before = engine.counters()["reads"]
            engine.read([(number, 0, size)], buffer)
            counts.append(engine.counters()["reads"] - before)
    assert buffer == data
    assert counts[0] == 32 and set(counts) == {32, 8} and len(counts) < 200
