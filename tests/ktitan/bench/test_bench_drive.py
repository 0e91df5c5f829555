"""Drive reads: which file, past the cache or not, right bytes, refusals said aloud."""

from __future__ import annotations

import errno
import mmap
import os

import pytest

from ktitan.bench import drive
from ktitan.bench.drive import DriveFile, drive_results, read_target
from ktitan.bench.measure import Pairing, Timing
from ktitan.bench.team import Team
from ktitan.errors import IoError, UnsupportedError

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(drive, "LEAST_FILE_BYTES", 4 * MIB)
    monkeypatch.setattr(drive, "PIECE_BYTES", MIB)
    monkeypatch.setattr(drive, "RUN_SECONDS", 0.001)


def refuse_direct(monkeypatch, at_read=False):
    opens, reads, direct = os.open, os.preadv, set()

    def open_(path, flags, *rest):
        if flags & os.O_DIRECT and not at_read:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        fd = opens(path, flags, *rest)
        (direct.add if flags & os.O_DIRECT else direct.discard)(fd)
        return fd

    def preadv(fd, buffers, offset):
        if fd in direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return reads(fd, buffers, offset)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "preadv", preadv)


def make(path, size):
    path.write_bytes(os.urandom(size))
    return path


def test_a_large_enough_file_is_read_as_it_is(tmp_path):
    small, large = make(tmp_path / "a.bin", MIB), make(tmp_path / "b.bin", 5 * MIB)
    make(tmp_path / "c.bin", 4 * MIB)
    for path in (large, tmp_path):
        with read_target(path) as target:
            assert target == large
    with read_target(small) as target:
        assert target not in (small, large)
        assert target.parent == tmp_path
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.bin", "b.bin", "c.bin"]


def test_a_temporary_file_is_random_and_goes_away_even_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), read_target(tmp_path) as target:
        assert target.stat().st_size == 4 * MIB
        content = target.read_bytes()
        assert len({content[start : start + 4096] for start in range(0, len(content), 4096)}) == 1024
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("refused", [None, "open", "read"])
def test_reads_return_the_file_s_bytes(tmp_path, monkeypatch, refused):
    path = make(tmp_path / "f", 4 * MIB)
    if refused:
        refuse_direct(monkeypatch, at_read=refused == "read")
    file = DriveFile(path)
    buffer = mmap.mmap(-1, 8192)
    file.read(buffer, 12288)
    file.close()
    assert buffer[:] == path.read_bytes()[12288:20480]
    if refused:
        assert not file.direct
        assert file.how == "buffered: O_DIRECT refused (Invalid argument)"


def test_a_read_past_the_end_is_an_error(tmp_path):
    file = DriveFile(make(tmp_path / "f", 4 * MIB))
    with pytest.raises(IoError, match="short"):
        file.read(mmap.mmap(-1, 8192), 4 * MIB - 4096)
    file.close()


def test_batches_visit_what_they_say(tmp_path, monkeypatch):
    file = DriveFile(make(tmp_path / "f", 4 * MIB))
    seen = []
    monkeypatch.setattr(file, "read", lambda buffer, offset: seen.append((len(buffer), offset)))
    with Team(4) as team:
        run, size_bytes = drive._batch(file, team, MIB, drive._sequential(file, MIB))
        seen.clear()
        asked = file.asked_bytes
        run()
        run()
        file.close()
    assert len(seen) * MIB == 2 * size_bytes == file.asked_bytes - asked
    assert {place for _, place in seen} == {0, MIB, 2 * MIB, 3 * MIB}
    counts = [seen.count((MIB, place * MIB)) for place in range(4)]
    assert max(counts) - min(counts) <= 1


def test_random_places_are_aligned_and_inside(tmp_path):
    file = DriveFile(make(tmp_path / "f", 4 * MIB + 5000))
    file.close()
    places = drive._scattered(file, 4096)(5000)
    assert all(place % 4096 == 0 and place + 4096 <= file.size_bytes for place in places)
    assert len(set(places)) > 500


def test_results_and_their_ceiling(tmp_path):
    results = drive_results(tmp_path, 0.02)
    assert [result.case for result in results] == [
        "drive-sequential-1MiB",
        "drive-random-128KiB",
        "drive-random-4KiB",
    ]
    assert results[0].ceiling is None
    for result in results:
        assert result.value > 0
        assert result.unit == "GB/s"
        assert "8 in flight" in result.metric
    assert all(result.ceiling > 0 and result.share_of_ceiling > 0 for result in results[1:])
    assert list(tmp_path.iterdir()) == []


def test_rates_count_the_bytes_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(drive, "repeats", lambda *_args: 1)
    monkeypatch.setattr(drive, "measure", lambda *_args, **_more: Timing((0.5,)))
    monkeypatch.setattr(drive, "interleave", lambda *_args, **_more: Pairing(Timing((2.0,)), Timing((0.25,))))
    monkeypatch.setattr(drive, "_metric", lambda *_args: "")
    sequential, *scattered = drive_results(tmp_path, 0.01)
    assert sequential.value == pytest.approx(4 * 8 * MIB / 0.5e9)
    for result, block_bytes in zip(scattered, (128 << 10, 4 << 10), strict=True):
        assert result.value == pytest.approx(4 * 8 * block_bytes / 2e9)
        assert result.ceiling == pytest.approx(4 * 8 * MIB / 0.25e9)
        assert result.share_of_ceiling == pytest.approx(result.value / result.ceiling)


def test_a_refusal_stands_in_every_metric(tmp_path, monkeypatch):
    refuse_direct(monkeypatch)
    assert all("O_DIRECT refused (Invalid argument)" in result.metric for result in drive_results(tmp_path, 0.01))


@pytest.mark.parametrize(("from_drive", "said"), [(100, False), (95, False), (50, True), (0, True)])
def test_bytes_that_the_drive_did_not_read_are_said(tmp_path, monkeypatch, from_drive, said):
    file = DriveFile(make(tmp_path / "f", 4 * MIB))
    file.close()
    file.asked_bytes = 300
    monkeypatch.setattr(drive, "drive_bytes", lambda: 1000 + from_drive)
    metric = drive._metric(file, 1000, 200)
    assert (f"only {from_drive}% of it from the drive" in metric) == said
    assert "from the drive" not in drive._metric(file, None, 200)


def test_wrong_bytes_are_never_timed(tmp_path, monkeypatch):
    def read(self, buffer, offset):
        buffer[:] = bytes(len(buffer))

    monkeypatch.setattr(DriveFile, "read", read)
    with pytest.raises(UnsupportedError, match="differ from an ordinary read"):
        drive_results(tmp_path, 0.01)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_not_there(tmp_path):
    with pytest.raises(IoError, match="No such file") as caught:
        drive_results(tmp_path / "nothing", 0.01)
    assert str(tmp_path / "nothing") in caught.value.where


def test_a_full_drive(tmp_path, monkeypatch):
    def fsync(_fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(IoError, match="No space left"):
        drive_results(tmp_path, 0.01)
    assert list(tmp_path.iterdir()) == []
