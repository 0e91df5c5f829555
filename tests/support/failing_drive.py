"""A file system of its own on a loop device whose end can be taken away: reads there then fail with EIO."""

import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest

TOOLS = ("losetup", "mkfs.ext4", "mount", "umount")
SPARE_BYTES = 24 << 20


def why_not():
    """Why there can be none here, or None."""
    if os.geteuid() != 0:
        return "loop devices are for root"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"no {', '.join(lacking)}" if lacking else None


class FailingDrive:
    """One mounted file.

    Attributes:
        file: the copy on the drive.
    """

    def __init__(self, image, file):
        self.file = file
        self._image, self._tail = image, None

    def fail(self, share=0.5):
        """From here on the last `share` of the drive cannot be read."""
        size = self._image.stat().st_size
        keep = int(size * (1 - share)) // 4096 * 4096
        with open(self._image, "r+b") as image:
            image.seek(keep)
            self._tail = (keep, image.read())
            image.truncate(keep)
        self._forget()

    def heal(self):
        """The drive is whole again."""
        keep, tail = self._tail
        with open(self._image, "r+b") as image:
            image.seek(keep)
            image.write(tail)
        self._forget()

    def _forget(self):
        """Drop cached pages of the file, which would be read instead of the drive."""
        descriptor = os.open(self.file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@contextmanager
def failing_drive(folder, source):
    """`source` copied to a drive that can be made to fail; everything is taken down again."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    image, place = folder / "drive.img", folder / "drive"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(source.stat().st_size + SPARE_BYTES)
    # No journal and few inodes: what ext4 itself needs lies at the start, which never fails here.
    _run("mkfs.ext4", "-q", "-O", "^has_journal", "-N", "16", "-E", "lazy_itable_init=0,packed_meta_blocks=1", image)
    device = _run("losetup", "-f", "--show", image)
    if device is None:
        pytest.skip("no loop device")
    mounted = False
    try:
        mounted = _run("mount", "-o", "noatime", device, place) is not None
        if not mounted:
            pytest.skip("no right to mount")
        shutil.copyfile(source, place / source.name)
        os.sync()
        _run("mount", "-o", "remount,ro", device, place)
        yield FailingDrive(image, place / source.name)
    finally:
        if mounted:
            _run("umount", "-l", place)
        _run("losetup", "-d", device)


def _run(*command):
    """What the command prints, or None when it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
