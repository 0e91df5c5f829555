"""The thread pool of the native library: forks, callers at once, sleep, and the callers' floating-point mode."""

import os
import resource
import threading
import time

import numpy as np
import pytest
import torch

from ktitan.errors import HardwareError, UnsupportedError
from ktitan.native import library

from support.packed_matrices import packed_matrix


@pytest.fixture
def job(native, rng):
    """A product that is large enough for all threads: call it, and its result must never change."""
    matrix, _ = packed_matrix("q8_0", 600, 1024, rng)
    x = torch.from_numpy(rng.standard_normal((3, 1024)).astype(np.float32))

    def run():
        out = torch.empty(3, 600)
        native.linear(x, matrix, None, "int8", out)
        return out

    return run


def exit_code_of_child(action):
    """Fork; the child runs `action` and exits with 0 when it returns True. A child that hangs is ended."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if action() else 1
        finally:
            os._exit(code)
    for _ in range(2000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "the child hangs"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_starts_threads_of_its_own(two_threads, job):
    before = job()

    def computes_with_two():
        right = all(torch.equal(job(), before) for _ in range(20))
        return right and len(os.listdir("/proc/self/task")) == 2

    assert exit_code_of_child(computes_with_two) == 0
    assert torch.equal(job(), before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_computes(two_threads, job):
    before = job()
    stop = threading.Event()

    def keep_busy():
        while not stop.is_set():
            job()

    worker = threading.Thread(target=keep_busy)
    worker.start()
    try:
        codes = [exit_code_of_child(lambda: torch.equal(job(), before)) for _ in range(5)]
    finally:
        stop.set()
        worker.join()
    assert codes == [0] * 5


def test_callers_at_once_get_their_own_results(native, rng, two_threads):
    cases = []
    for rows, width in ((300, 512), (77, 2048), (500, 256)):
        matrix, _ = packed_matrix("q4_k", rows, width, rng)
        x = torch.from_numpy(rng.standard_normal((5, width)).astype(np.float32))
        wanted = torch.empty(5, rows)
        native.linear(x, matrix, None, "int8", wanted)
        cases.append((matrix, x, wanted))
    wrong = []

    def repeat(matrix, x, wanted):
        for _ in range(800):
            out = torch.empty_like(wanted)
            native.linear(x, matrix, None, "int8", out)
            if not torch.equal(out, wanted):
                wrong.append(matrix)

    callers = [threading.Thread(target=repeat, args=case) for case in cases]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_threads_change_between_calls(two_threads, job):
    before = job()
    for count in (1, 4, 2, 9, 1, 3):
        library.set_threads(count)
        assert library.threads() == count
        assert torch.equal(job(), before)


@pytest.mark.parametrize("count", [0, -3, 1025])
def test_a_number_of_threads_that_means_nothing(native, count):
    with pytest.raises(UnsupportedError, match=f"{count} threads"):
        library.set_threads(count)


def test_an_idle_pool_sleeps(two_threads, job):
    job()
    time.sleep(0.05)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(0.4)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.1
    assert job().isfinite().all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_memory_is_an_error(native, rng):
    """Under a limit on address space the temporaries of a call cannot be had; the process lives on."""
    matrix, _ = packed_matrix("f32", 2, 1 << 16, rng)
    x, out = torch.zeros(1, 1 << 16, dtype=torch.bfloat16), torch.full((1, 2), 7, dtype=torch.bfloat16)

    def refused_then_done():
        library.set_threads(1024)  # each has a row of its own for conversions: 256 MB together
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + (4 << 20), -1))
        with pytest.raises(HardwareError, match="no memory for the temporaries"):
            native.linear(x, matrix, None, "float32", out)
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        library.set_threads(1)
        native.linear(x, matrix, None, "float32", out)
        return bool((out == 0).all())

    assert exit_code_of_child(refused_then_done) == 0
