"""The engine as part of a process: forks, signals, threads that sleep, and nothing that is left behind."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from ktitan.native import io
from ktitan.native.io import IoEngine, huge_buffer

from support.io_rig import MODES, in_child, made, random_ranges, read_all

SIZE = (1 << 20) + 5


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """(path, its bytes)."""
    path = tmp_path_factory.mktemp("io") / "weights.bin"
    return path, made(path, SIZE)


def check(engine, number, data, count=50):
    ranges = random_ranges(number, SIZE, count, 200_000)
    assert read_all(engine, ranges) == [data[at : at + size] for _, at, size in ranges]


def tasks():
    """Threads of this process, also those that Python does not know."""
    return len(os.listdir("/proc/self/task"))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def resident_bytes():
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_fork_has_a_ring_or_threads_of_its_own(native, file, mode):
    path, data = file
    engine = IoEngine(mode, piece_bytes=1 << 16)
    number = engine.add(path)
    check(engine, number, data)

    def child():
        check(engine, number, data)
        in_child(lambda: check(engine, number, data))
        assert engine.counters()["uring"] == (mode == "io_uring")
        engine.close()

    in_child(child)
    in_child(engine.close)
    check(engine, number, data)
    engine.close()


def test_a_fork_while_reads_are_under_way(native, file, mode):
    """Another thread reads all the time; a fork happens between two of its calls."""
    path, data = file
    with IoEngine(mode, piece_bytes=1 << 14) as engine:
        number = engine.add(path)
        stop = threading.Event()
        failures = []

        def reader():
            while not stop.is_set():
                try:
                    check(engine, number, data, 10)
                except AssertionError as error:
                    failures.append(error)

        thread = threading.Thread(target=reader)
        thread.start()
        try:
            for _ in range(5):
                with engine._lock:
                    child = os.fork()
                    if child == 0:
                        signal.alarm(60)
                        engine._lock.release()
                        status = 1
                        try:
                            check(engine, number, data)
                            status = 0
                        finally:
                            os._exit(status)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            stop.set()
            thread.join()
        assert not failures


def test_a_fork_reads_again_what_was_in_flight(native, file, mode):
    """Reads that the parent handed over and nobody reaped are the child's, too."""
    path, data = file
    with IoEngine(mode, piece_bytes=1 << 14, depth=2) as engine:
        number, buffer = engine.add(path), huge_buffer(SIZE + 4096)
        reads = (io._Read * 1)(io._Read(number, 0, SIZE, io._address(buffer), 7))
        done = (io._Done * 1)()

        def finish():
            assert engine._native.kt_engine_reap(engine._handle, done, 1, 1) == 1
            assert (done[0].tag, done[0].error) == (7, 0) and buffer[:SIZE] == data
            assert engine._native.kt_engine_pending(engine._handle) == 0

        for _ in range(5):
            buffer[:SIZE] = bytes(SIZE)
            assert engine._native.kt_engine_submit(engine._handle, reads, 1) == 0
            in_child(finish)
            finish()


def test_signals_do_not_disturb_reads(native, file, mode):
    path, data = file
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        with IoEngine(mode, piece_bytes=1 << 14) as engine:
            number = engine.add(path)
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                check(engine, number, data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) > 10


def test_threads_sleep_without_work_and_end(native, file):
    path, data = file
    before = tasks()
    with IoEngine("threads", piece_bytes=1 << 14) as engine:
        number = engine.add(path)
        assert tasks() == before, "started before there is work"
        check(engine, number, data)
        assert before < tasks() <= before + 64
        start = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - start < 0.1
    assert tasks() == before


def test_nothing_is_left_of_200_engines(native, file, mode):
    path, data = file
    threads, open_files = tasks(), descriptors()

    def use(times):
        for _ in range(times):
            with IoEngine(mode, piece_bytes=1 << 16) as engine:
                engine.register(buffer, buffer.nbytes)
                check(engine, engine.add(path), data, 2)

    buffer = huge_buffer(1 << 20)
    use(50)
    resident = resident_bytes()
    use(150)
    assert resident_bytes() - resident < 8 << 20
    for _ in range(100):  # the kernel ends its own threads a little later
        if tasks() == threads:
            break
        time.sleep(0.02)
    assert (tasks(), descriptors()) == (threads, open_files)
