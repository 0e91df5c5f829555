"""Files that change and drives that fail: the reads concerned fail with what is wrong, and the engine goes on."""

import os

import pytest

from ktitan.errors import IoError
from ktitan.native.io import IoEngine
from ktitan.weights.files import stamp_of

from support.io_rig import MODES, loop_drive, made, random_ranges, read_all

SIZE = (256 << 10) + 1234


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture
def file(tmp_path):
    """(path, its bytes)."""
    path = tmp_path / "weights.bin"
    return path, made(path, SIZE)


def faults_of(engine, ranges):
    """The faults of reads that must fail."""
    with pytest.raises(IoError) as caught:
        read_all(engine, ranges)
    return caught.value.faults


@pytest.mark.parametrize("stamped", [True, False])
def test_a_file_that_is_cut_fails_until_it_is_whole_again(native, file, tmp_path, mode, stamped):
    path, data = file
    stamp = stamp_of(path) if stamped else None
    other = tmp_path / "other.bin"
    rest = made(other, 9000)
    with IoEngine(mode, piece_bytes=1 << 16) as engine:
        number, second = engine.add(path, stamp), engine.add(other)
        assert read_all(engine, [(number, 0, SIZE)]) == [data]
        os.truncate(path, 100_000)
        (fault,) = faults_of(engine, [(number, 99_000, 2000), (second, 5, 70)])
        assert ("changed since" if stamped else "ends early") in fault.message and str(path) in fault.where
        if not stamped:
            assert read_all(engine, [(number, 99_999, 1)]) == [data[99_999:100_000]]
        with path.open("r+b") as again:
            again.seek(100_000)
            again.write(data[100_000:])
        if stamped:
            os.utime(path, ns=(stamp.modified_ns, stamp.modified_ns))
        ranges = random_ranges(number, SIZE, 20, SIZE)
        assert read_all(engine, [*ranges, (second, 0, 9000)]) == [*(data[a : a + n] for _, a, n in ranges), rest]


def test_a_file_that_is_rewritten_is_refused(native, file, mode):
    path, _ = file
    stamp = stamp_of(path)
    with IoEngine(mode) as engine:
        number = engine.add(path, stamp)
        with path.open("r+b") as changed:
            changed.write(b"other")
        os.utime(path, ns=(0, stamp.modified_ns + 1))
        (fault,) = faults_of(engine, [(number, 0, 10)])
        assert "changed since" in fault.message and fault.remedy
        with pytest.raises(IoError, match="changed since"):
            engine.add(path, stamp)


def test_a_file_that_is_replaced_is_read_as_it_was(native, file, tmp_path, mode):
    path, data = file
    with IoEngine(mode) as engine:
        number = engine.add(path, stamp_of(path))
        made(tmp_path / "new", SIZE)
        (tmp_path / "new").replace(path)
        assert read_all(engine, [(number, 7, SIZE - 7)]) == [data[7:]]


def test_a_drive_that_fails_and_comes_back(native, file, tmp_path, mode):
    """The file below a loop device is cut: reads behind the cut give EIO."""
    healthy, healthy_data = file
    size = 4 << 20
    with loop_drive(tmp_path, 16 << 20) as (image, place):
        path = place / "weights.bin"
        data = made(path, size)
        whole = image.read_bytes()
        where = whole.find(data[size // 2 : size // 2 + 4096])
        if where < 0:
            pytest.skip("the file's bytes are not on the drive as they are")
        with IoEngine(mode, piece_bytes=1 << 16) as engine:
            number, second = engine.add(path, stamp_of(path)), engine.add(healthy)
            os.truncate(image, where)
            good, bad = (second, 3, SIZE - 3), (number, size // 2, 1 << 17)
            (fault,) = faults_of(engine, [bad, good])
            assert "Input/output error" in fault.message and str(path) in fault.where and fault.remedy
            assert read_all(engine, [good, (number, 0, 4096)]) == [healthy_data[3:], data[:4096]]
            image.write_bytes(whole)
            assert read_all(engine, [(number, 0, size), good]) == [data, healthy_data[3:]]


def test_a_file_whose_drive_failed_is_opened_again(native, tmp_path, mode):
    """At its path stands what came back; the descriptor of the failed drive is given up."""
    size = 1 << 20
    with loop_drive(tmp_path, 8 << 20) as (image, place):
        path, link = place / "weights.bin", tmp_path / "link"
        data = made(path, size)
        link.symlink_to(path)
        with IoEngine(mode) as engine:
            number = engine.add(link)
            whole = image.stat().st_size
            os.truncate(image, 0)
            assert "Input/output error" in faults_of(engine, [(number, 0, size)])[0].message
            assert "Input/output error" in faults_of(engine, [(number, 0, size)])[0].message
            os.truncate(image, whole)
            (tmp_path / "copy").write_bytes(data)
            link.unlink()
            assert faults_of(engine, [(number, 0, 1)])[0].remedy == "check the path"
            link.symlink_to(tmp_path / "copy")
            assert read_all(engine, [(number, 0, size)]) == [data]
