"""Memory read bandwidth: the ceiling of everything that streams weights through the processor.

The buffer is larger than all caches together and lies in huge pages, as weight arenas do. A compiled loop sums it in
four streams, which the hardware prefetchers follow better than one; `torch.sum` over the same bytes is its peer.
"""

from __future__ import annotations

import functools
import itertools
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ktitan.bench.measure import Run, interleave, measure, repeats, settled_clock
from ktitan.bench.result import Result
from ktitan.bench.team import Team
from ktitan.hardware import Hardware, last_level_cache_bytes

__all__ = ["aligned_buffer", "buffer_bytes", "fill", "memory_results", "read_rate", "reader"]

HUGE_PAGE_BYTES = 2 << 20
LEAST_BYTES = 512 << 20
# One row has to find at least a whole f32 matrix in the buffer, however short memory is.
FLOOR_BYTES = 64 << 20
CACHE_MULTIPLE = 4
# Handing parts to threads from Python costs some 20 us each; a run this long makes that negligible on any machine.
RUN_SECONDS = 0.05
MAX_PAIRS = 1000


def buffer_bytes(hardware: Hardware) -> int:
    """Bytes to read: four times the last-level cache and at least 512 MiB; a quarter of what is free at most."""
    wanted = max(CACHE_MULTIPLE * last_level_cache_bytes(), LEAST_BYTES)
    size_bytes = min(wanted, hardware.memory.available_bytes // 4 or LEAST_BYTES)
    return max(size_bytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, FLOOR_BYTES)


def aligned_buffer(size_bytes: int) -> NDArray[np.uint8]:
    """[size_bytes] zeros that start on a 2 MiB boundary; huge pages are asked for where the system has them."""
    memory = mmap.mmap(-1, size_bytes + HUGE_PAGE_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, dtype=np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE_BYTES
    return whole[start : start + size_bytes]


def fill(buffer: NDArray[np.uint8], team: Team) -> None:
    """Random bytes that are finite and moderate numbers when read as int8, bf16 or f32.

    Read as bf16 all magnitudes lie in [2^-7, 1); in f32 a pair's upper half decides, so that holds there too. Each
    thread of `team` writes the part that it will read, which places the pages near to it.
    """
    random = np.random.default_rng()
    words = random.integers(0, 1 << 16, 8 << 20, dtype=np.uint16)
    exponents = random.integers(120, 127, words.size, dtype=np.uint16)
    pattern = ((words & 0x807F) | (exponents << 7)).view(np.uint8)

    def write(part: NDArray[np.uint8]) -> None:
        for start in range(0, part.size, pattern.size):
            piece = part[start : start + pattern.size]
            piece[:] = pattern[: piece.size]

    team.run(write, _parts(buffer, team.size))


def reader(buffer: NDArray[np.uint8], team: Team, passes: int = 1) -> Callable[[], int]:
    """A run that reads the whole buffer `passes` times on all threads of `team`.

    It returns the sum of the buffer's int64 words, times `passes`, modulo 2^64 as a signed number.
    """
    kernel = _sum_kernel()
    parts = [part.view(np.int64) for part in _parts(buffer, team.size)]

    def read(part: NDArray[np.int64]) -> int:
        return sum(kernel(part) for _ in range(passes))

    return lambda: _signed(sum(team.run(read, parts)))


def read_rate(buffer: NDArray[np.uint8], threads: int, seconds: float) -> float:
    """Bytes a second that `threads` read from `buffer`, in about `seconds`, without torch.

    Raises:
        UnsupportedError: the loop found a wrong sum.
    """
    with Team(threads) as team:
        run = reader(buffer, team)
        check = functools.partial(_check_sum, run, buffer, 1)
        return measure(run, MAX_PAIRS, seconds=seconds, check=check, case="memory-read").rate(buffer.size)


def memory_results(buffer: NDArray[np.uint8], hardware: Hardware, seconds: float) -> list[Result]:
    """Read bandwidth with one thread, then with all that are usable; each takes about `seconds`."""
    return [_read_result(buffer, threads, seconds) for threads in sorted({1, hardware.cpu.usable_cpus})]


def _read_result(buffer: NDArray[np.uint8], threads: int, seconds: float) -> Result:
    import torch

    words = torch.from_numpy(buffer.view(np.int64))
    case = f"memory-read-{threads}t"
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with Team(threads) as team:
            passes = repeats(reader(buffer, team), RUN_SECONDS)
            ours = reader(buffer, team, passes)

            def peer() -> None:
                for _ in range(passes):
                    words.sum()

            check = functools.partial(_check_sum, ours, buffer, passes)
            pairing = interleave(ours, peer, MAX_PAIRS, seconds=seconds, check=check, clock=settled_clock, case=case)
    finally:
        torch.set_num_threads(before)
    amount = passes * buffer.size / 1e9
    return Result(
        case=case,
        metric=f"read bandwidth, compiled sum over {buffer.size >> 20} MiB{_cache_note(buffer.size)}",
        value=pairing.a.rate(amount),
        unit="GB/s",
        peer="torch.sum",
        peer_value=pairing.b.rate(amount),
        ratio_to_peer=pairing.ratio(),
        runs=pairing.a.runs,
        spread=pairing.a.spread,
    )


def _cache_note(size_bytes: int) -> str:
    """What to warn of when memory was too short for a buffer that no cache can hold a good part of."""
    cache_bytes = last_level_cache_bytes()
    return f" (cache {cache_bytes >> 20} MiB)" if size_bytes < CACHE_MULTIPLE * cache_bytes else ""


def _check_sum(run: Run, buffer: NDArray[np.uint8], passes: int) -> str | None:
    expected = _signed(passes * int(buffer.view(np.int64).sum()))
    found = run()
    return None if found == expected else f"the buffer's words sum to {expected}, the compiled loop found {found}"


def _signed(value: int) -> int:
    """`value` modulo 2^64 in [-2^63, 2^63): how int64 addition wraps."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _parts(buffer: NDArray[np.uint8], count: int) -> list[NDArray[np.uint8]]:
    """`count` neighbouring parts of whole 64-byte lines; the last one takes what is left over."""
    step = buffer.size // count // 64 * 64
    edges = [step * index for index in range(count)] + [buffer.size]
    return [buffer[low:high] for low, high in itertools.pairwise(edges)]


@functools.cache
def _sum_kernel() -> Any:
    """Compiled sum of int64 words, wrapping, with the GIL released."""
    import numba

    @numba.njit("int64(int64[::1])", nogil=True)
    def total(words: NDArray[np.int64]) -> int:
        quarter = words.size // 4
        a = b = c = d = 0
        for i in range(quarter):
            a += words[i]
            b += words[quarter + i]
            c += words[2 * quarter + i]
            d += words[3 * quarter + i]
        for i in range(4 * quarter, words.size):
            a += words[i]
        return a + b + c + d

    return total
