"""What the processor is, from whichever source knows: `/proc/cpuinfo`, sysfs, or the `cpufeature` package.

Functions that read files take the root of the tree that holds `proc` and `sys`. What is unknown is empty or 0.
"""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ktitan.cgroups import read_text

__all__ = [
    "Cache",
    "CpuFacts",
    "caches",
    "cpufeature_facts",
    "last_level_cache_bytes",
    "numa_nodes",
    "parse_cpuinfo",
    "sysfs_cores",
]


class CpuFacts(NamedTuple):
    """What one source knows of the processor; empty or 0 where it does not know."""

    name: str = ""
    isa: frozenset[str] = frozenset()
    physical_cores: int = 0
    logical_cpus: int = 0


def parse_cpuinfo(text: str) -> CpuFacts:
    """Facts of `/proc/cpuinfo` in the x86 or Arm spelling; the flags are those that all processors share."""
    name, processors = "", 0
    flags: list[frozenset[str]] = []
    cores: set[tuple[str, str]] = set()
    socket = ""
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "processor":
            processors += 1
        elif key in ("model name", "cpu model", "cpu", "uarch"):
            name = name or value
        elif key in ("flags", "Features"):
            flags.append(frozenset(value.lower().split()))
        elif key == "physical id":
            socket = value
        elif key == "core id":
            cores.add((socket, value))
    return CpuFacts(name, frozenset.intersection(*flags) if flags else frozenset(), len(cores), processors)


# Where the package's name is not the Linux flag in capitals. It calls a feature present only when the processor has
# it; whether the system saves the wide registers is a second entry, which Linux folds into the flag.
_LINUX_FLAGS = {
    "SSE3": "pni",
    "SSE4.1": "sse4_1",
    "SSE4.2": "sse4_2",
    "SSE4.a": "sse4a",
    "FMA3": "fma",
    "SHA": "sha_ni",
    "x64": "lm",
    "PREFETCHWT1": "prefetchwt1",
    "AVX512vbmi2": "avx512_vbmi2",
    "AVX512vnni": "avx512_vnni",
}
_AVX_STATE_FLAGS = ("fma", "fma4", "xop")


def cpufeature_facts() -> CpuFacts:
    """Facts from the optional `cpufeature` package; it has no model name, nor flags newer than AVX-512 VNNI."""
    try:
        from cpufeature import CPUFeature as feature
    except ImportError:
        return CpuFacts(platform.processor())
    flags = {_LINUX_FLAGS.get(name, name.lower()) for name, present in feature.items() if present is True}
    flags = {flag for flag in flags if not flag.startswith("os_")}
    if not feature.get("OS_AVX512"):
        flags = {flag for flag in flags if not flag.startswith("avx512")}
    if not feature.get("OS_AVX"):
        flags = {flag for flag in flags if not flag.startswith("avx") and flag not in _AVX_STATE_FLAGS}
    cores, threads = int(feature.get("num_physical_cores", 0)), int(feature.get("num_virtual_cores", 0))
    return CpuFacts(platform.processor(), frozenset(flags), cores, threads)


def sysfs_cores(root: Path) -> int:
    """Physical cores, counted as sets of sibling threads: `cpuinfo` has no core numbers on Arm. 0 when unknown."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    return len({read_text(file).strip() for file in files} - {""})


@dataclass(frozen=True)
class Cache:
    """One level of the processor's caches: `kind` is data, instruction or unified; there are `count` of this size."""

    level: int
    kind: str
    size_bytes: int
    count: int


def caches(root: Path = Path("/")) -> list[Cache]:
    """The caches of all sockets and core complexes, lowest level first; empty when sysfs does not say."""
    found: set[tuple[int, str, int, str]] = set()
    for entry in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size = read_text(entry / "level").strip(), read_text(entry / "size").strip()
        if level.isdecimal() and size[:-1].isdecimal() and size[-1] in "KMG":
            size_bytes = int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[-1]]
            kind = read_text(entry / "type").strip().lower() or "unified"
            # Processors that share a cache name the same sharers.
            sharers = read_text(entry / "shared_cpu_list").strip() or entry.parts[-3]
            found.add((int(level), kind, size_bytes, sharers))
    counts = Counter(cache[:3] for cache in found)
    return [Cache(*cache, counts[cache]) for cache in sorted(counts)]


def last_level_cache_bytes(root: Path = Path("/")) -> int:
    """Bytes of the largest-numbered cache level over all sockets and core complexes; 0 when sysfs does not say."""
    found = caches(root)
    last = max((cache.level for cache in found), default=0)
    return sum(cache.size_bytes * cache.count for cache in found if cache.level == last)


def numa_nodes(root: Path = Path("/")) -> int:
    """NUMA nodes with processors or memory; 0 when sysfs does not say."""
    return len(list((root / "sys/devices/system/node").glob("node[0-9]*")))
