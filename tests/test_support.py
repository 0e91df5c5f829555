"""What tests lean on does what it says: a program too large for its cgroup is killed, a failing drive gives EIO."""

import errno
import mmap
import os
import sys

import pytest

from support.failing_drive import failing_drive
from support.memory_cgroup import memory_cgroup

MIB = 1 << 20
TAKE = "import sys; data = bytearray(int(sys.argv[1])); data[::4096] = b'x' * len(data[::4096]); print('held')"


def test_a_program_that_fits_its_cgroup_lives_and_a_larger_one_is_killed():
    with memory_cgroup(96 * MIB) as group:
        small = group.run([sys.executable, "-c", TAKE, 32 * MIB])
        assert (small.returncode, small.stdout, small.kills) == (0, "held\n", 0)
        assert 32 * MIB < small.peak_bytes <= 96 * MIB
        large = group.run([sys.executable, "-c", TAKE, 256 * MIB])
        assert (large.returncode, large.stdout, large.kills) == (-9, "", 1)
        folder = group.folder
    assert not folder.exists()


def read_direct(path, offset):
    """A page past the cache."""
    descriptor, page = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 4096)
    try:
        os.preadv(descriptor, [page], offset)
        return page[:]
    finally:
        os.close(descriptor)


def test_a_failing_drive_gives_eio_until_it_heals(tmp_path):
    source = tmp_path / "data.bin"
    source.write_bytes(os.urandom(8 * MIB))
    last = 8 * MIB - 4096
    with failing_drive(tmp_path, source) as drive:
        expected = source.read_bytes()[last:]
        assert read_direct(drive.file, last) == expected
        drive.fail(0.9)
        with pytest.raises(OSError) as failed:
            read_direct(drive.file, last)
        assert failed.value.errno == errno.EIO
        drive.heal()
        assert read_direct(drive.file, last) == expected
    assert os.listdir(tmp_path / "drive") == []
