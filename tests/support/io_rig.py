"""Files with known bytes, processes that may do less, and drives that fail: for tests of the I/O engine."""

import contextlib
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import traceback
import warnings

import pytest
import torch

from ktitan.native.io import huge_buffer, layout
from ktitan.native.io_uring import io_uring_fault

MODES = ["threads"] if io_uring_fault() else ["io_uring", "threads"]
SETUP, ENTER, REGISTER, PREAD, OPENAT = 425, 426, 427, 17, 257  # system calls of x86-64


def made(path, nbytes):
    """The bytes of a new file that is on its drive, so that direct reads go there."""
    data = random.randbytes(nbytes)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return data


def read_all(engine, ranges):
    """The bytes of each (file, offset, nbytes)."""
    places, needed = layout(ranges)
    buffer = huge_buffer(needed)
    engine.read(ranges, buffer)
    return [bytes(buffer[at : at + nbytes]) for at, (_, _, nbytes) in zip(places, ranges, strict=True)]


def random_ranges(file, size, count, longest):
    starts = [random.randrange(size) for _ in range(count)]
    return [(file, start, random.randint(1, min(longest, size - start))) for start in starts]


def in_child(task):
    """Run `task` in a fork of this process; its failure is the caller's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads; the child does without them
        child = os.fork()
    if child == 0:
        status = 1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # a child that hangs ends
        try:
            torch.set_num_threads(1)  # OpenMP's threads are not there after a fork, and it would wait for them
            task()
            status = 0
        except BaseException:  # noqa: BLE001 - a child must not go on as a second test run
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class _Step(ctypes.Structure):
    """struct sock_filter of linux/filter.h."""

    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class _Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(_Step))]


def refuse(call, error, argument=None, bits=0):
    """From now on the kernel answers `error` to a system call, for good; only where `argument` has one of `bits`."""
    load, equal, any_bit, answer = 0x20, 0x15, 0x45, 0x06  # BPF_LD|W|ABS, JMP|JEQ|K, JMP|JSET|K, RET|K
    steps = [_Step(load, 0, 0, 0), _Step(equal, 0, 1 if argument is None else 3, call)]
    if argument is not None:
        steps += [_Step(load, 0, 0, 16 + 8 * argument), _Step(any_bit, 0, 1, bits)]
    steps += [_Step(answer, 0, 0, 0x00050000 | error), _Step(answer, 0, 0, 0x7FFF0000)]
    program = _Program(len(steps), (_Step * len(steps))(*steps))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


@contextlib.contextmanager
def loop_drive(folder, nbytes):
    """(the file below the drive, where the drive is mounted); skipped without the right to."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("losetup", "mkfs.ext4", "mount"))):
        pytest.skip("only root can make a drive")
    image, place = folder / "drive.img", folder / "drive"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(nbytes)
    run = lambda *command: subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: E731
    found = run("losetup", "--find", "--show", "--direct-io=off", str(image))
    if found.returncode:
        pytest.skip(f"no loop device: {found.stderr.strip()}")
    device = found.stdout.strip()
    try:
        steps = [("mkfs.ext4", "-q", "-O", "^has_journal", device), ("mount", "-o", "noatime", device, str(place))]
        failed = next((done.stderr for done in (run(*step) for step in steps) if done.returncode), "")
        if failed:
            pytest.skip(f"no drive: {failed.strip()}")
        yield image, place
    finally:
        run("umount", str(place))
        run("losetup", "--detach", device)
