"""What a system may refuse: io_uring, locked memory, descriptors, O_DIRECT. The bytes stay the same."""

import errno
import logging
import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ktitan.errors import IoError, UnsupportedError
from ktitan.native.io import IoEngine, huge_buffer

from support.io_rig import ENTER, MODES, OPENAT, PREAD, REGISTER, SETUP, in_child, made, random_ranges, read_all, refuse

SIZE = 300_001
needs_ring = pytest.mark.skipif("io_uring" not in MODES, reason="no io_uring")


@pytest.fixture
def file(tmp_path):
    """(path, its bytes)."""
    path = tmp_path / "weights.bin"
    return path, made(path, SIZE)


def same_bytes(engine, path, data):
    """Random ranges of the file are what they should be; the counters."""
    ranges = random_ranges(engine.add(path), SIZE, 50, SIZE)
    assert read_all(engine, ranges) == [data[at : at + size] for _, at, size in ranges]
    return engine.counters()


@pytest.mark.parametrize("call", [SETUP, ENTER])
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.ENOMEM])
def test_threads_read_where_io_uring_is_refused(native, file, caplog, call, error):
    """By a filter of system calls, as containers have it; once at the door and once behind it."""

    def task():
        refuse(call, error)
        with caplog.at_level(logging.WARNING), IoEngine(piece_bytes=1 << 16) as engine:
            counters = same_bytes(engine, *file)
        assert (counters["uring"], counters["registered"]) == (0, 0)
        assert [record.message for record in caplog.records if "threads read" in record.message]
        with pytest.raises(UnsupportedError, match="io_uring is refused"):
            IoEngine("io_uring")

    in_child(task)


@needs_ring
def test_threads_go_on_where_io_uring_is_refused_later(native, file):
    path, data = file

    def task():
        with IoEngine("io_uring", piece_bytes=1 << 16) as engine:
            assert same_bytes(engine, path, data)["uring"] == 1
            refuse(ENTER, errno.EPERM)
            assert same_bytes(engine, path, data)["uring"] == 0

    in_child(task)


@needs_ring
def test_reads_do_without_memory_that_may_not_be_locked(native, file):
    def limited():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        os.setresuid(65534, 65534, 65534)  # CAP_IPC_LOCK would lift the limit
        with IoEngine(piece_bytes=1 << 16) as engine:
            assert not engine.register(huge_buffer(1 << 20), 1 << 20)
            assert engine.counters()["registered"] == 0
        os._exit(0)

    def unregistered():
        refuse(REGISTER, errno.ENOMEM)
        with IoEngine(piece_bytes=1 << 16) as engine:
            assert not engine.register(huge_buffer(1 << 20), 1 << 20)
            assert same_bytes(engine, *file)["uring"] == 1

    if os.geteuid() == 0:
        in_child(limited)
    in_child(unregistered)


@pytest.mark.parametrize("mode", MODES)
def test_reads_go_through_the_cache_where_direct_ones_are_refused(native, file, mode):
    """O_DIRECT refused when a file is opened."""

    def task():
        refuse(OPENAT, errno.EINVAL, argument=2, bits=os.O_DIRECT)
        with IoEngine(mode, piece_bytes=1 << 16) as engine:
            assert same_bytes(engine, *file)["direct_files"] == 0

    in_child(task)


@pytest.mark.parametrize("mode", MODES)
def test_more_files_than_descriptors(native, tmp_path, mode):
    """Files without reads give theirs to others."""
    paths = [tmp_path / f"{number}.bin" for number in range(60)]
    contents = [made(path, 5000) for path in paths]

    def task():
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                try:
                    os.close(int(name))
                except OSError:
                    continue
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        with IoEngine(mode) as engine:
            numbers = [engine.add(path) for path in paths]
            for number, data in zip(numbers, contents, strict=True):
                assert read_all(engine, [(number, 1, 4999)]) == [data[1:]]
            with pytest.raises(IoError, match="ulimit -n"):
                read_all(engine, [(number, 0, 5000) for number in numbers])
            assert read_all(engine, [(numbers[0], 0, 5000)]) == [contents[0]]

    in_child(task)


def test_the_caller_reads_where_no_thread_can_be_started(native, file):
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody with a limit of its own")
    path, data = file
    descriptor_path = Path(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}")
    path.parent.chmod(0o755)

    def task():
        engine = IoEngine("threads", piece_bytes=1 << 16)
        number = engine.add(descriptor_path)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        os.setresuid(12345, 12345, 12345)
        with pytest.raises(RuntimeError):
            threading.Thread(target=int).start()
        assert read_all(engine, [(number, 5, SIZE - 5)]) == [data[5:]]
        engine.close()

    in_child(task)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENODEV, errno.ESTALE])
def test_an_errno_of_a_read_is_told(native, file, error):
    path, _ = file

    def task():
        with IoEngine("threads") as engine:
            number = engine.add(path)
            refuse(PREAD, error)
            for _ in range(3):
                with pytest.raises(IoError) as caught:
                    read_all(engine, [(number, 0, 100), (number, 5000, 100)])
                assert [os.strerror(error) in fault.message for fault in caught.value.faults] == [True, True]

    in_child(task)


# A drive whose direct reads must begin at multiples of 16 KiB.
WIDE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
ssize_t pread(int fd, void *to, size_t bytes, off_t at) {
    if ((fcntl(fd, F_GETFL) & O_DIRECT) && (at % 16384 || bytes % 16384)) return errno = EINVAL, -1;
    return ((ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(fd, to, bytes, at);
}
"""
READER = """
import sys
from ktitan.native.io import IoEngine, huge_buffer
with IoEngine("threads", piece_bytes=16384) as engine:
    number, buffer, size = engine.add(sys.argv[1]), huge_buffer(1 << 20), int(sys.argv[2])
    engine.read([(number, 0, 16384)], buffer)
    print(engine.counters()["direct_files"])
    engine.read([(number, 4099, size - 4099)], buffer)
    print(engine.counters()["direct_files"], bytes(buffer[3 : 3 + size - 4099]).hex())
"""


def test_reads_go_through_the_cache_where_a_drive_wants_other_alignment(native, file, tmp_path):
    """O_DIRECT is taken when the file is opened, and a read is refused later."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path, data = file
    source, shim = tmp_path / "wide.c", tmp_path / "wide.so"
    source.write_text(WIDE, "utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    command = [sys.executable, "-P", "-c", READER, path, str(SIZE)]
    environment = {**os.environ, "LD_PRELOAD": str(shim)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0", data[4099:].hex()]


def test_it_builds_where_the_kernels_header_is_old(repository, tmp_path):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    (tmp_path / "linux").mkdir()
    (tmp_path / "linux/io_uring.h").touch()
    source, output = repository / "csrc/tiers/uring.cpp", tmp_path / "uring.o"
    subprocess.run(
        [compiler, "-std=c++17", "-Wall", "-Werror", f"-I{tmp_path}", "-c", source, "-o", output], check=True
    )
