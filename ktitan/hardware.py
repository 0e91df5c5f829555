"""What the machine is: processor, memory and GPUs, with the limits that a container puts on them.

Nothing here raises on an odd machine: what cannot be found out stays unknown (the name "unknown", no flags, 0 bytes).
torch is imported only when GPUs are asked for. Functions that read files take the root of the tree that holds `proc`
and `sys`.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path

from ktitan.cgroups import cpu_quota, memory_limits, read_text
from ktitan.cpuinfo import Cache, cpufeature_facts, last_level_cache_bytes, numa_nodes, parse_cpuinfo, sysfs_cores
from ktitan.cpuinfo import caches as processor_caches

__all__ = [
    "UNKNOWN",
    "Cache",
    "Cpu",
    "Gpu",
    "Hardware",
    "Memory",
    "detect",
    "detect_cpu",
    "detect_gpus",
    "detect_memory",
    "last_level_cache_bytes",
    "numa_nodes",
    "processor_caches",
]

logger = logging.getLogger("ktitan.hardware")

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Cpu:
    """The processor: `isa` holds Linux flag names in lower case; `usable_cpus` respects cpusets and cgroup quotas."""

    name: str
    isa: frozenset[str]
    physical_cores: int
    logical_cpus: int
    usable_cpus: int

    def has(self, *flags: str) -> bool:
        """Whether every one of these Linux flag names is there, e.g. `has("avx512f", "avx512_vnni")`."""
        return self.isa.issuperset(flags)


@dataclass(frozen=True)
class Memory:
    """Main memory; `limit_bytes` is the tightest cgroup limit, None when there is none.

    `available_bytes` can be taken without swapping or passing a limit: cache that can be dropped counts as available.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None


@dataclass(frozen=True)
class Gpu:
    """One CUDA device; `capability` is (major, minor)."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Hardware:
    """One machine."""

    cpu: Cpu
    memory: Memory
    gpus: tuple[Gpu, ...] = ()


def detect(gpus: bool = True) -> Hardware:
    """This machine now; without `gpus` torch is not imported and `Hardware.gpus` is empty."""
    return Hardware(detect_cpu(), detect_memory(), detect_gpus() if gpus else ())


def detect_cpu(root: Path = Path("/")) -> Cpu:
    """The processor, from `/proc/cpuinfo` and sysfs, or from the `cpufeature` package where there is no `/proc`."""
    text = read_text(root / "proc/cpuinfo")
    facts = parse_cpuinfo(text) if text else cpufeature_facts()
    logical = facts.logical_cpus or os.cpu_count() or 1
    physical = facts.physical_cores or sysfs_cores(root) or logical
    return Cpu(facts.name or UNKNOWN, facts.isa, physical, logical, _usable_cpus(logical, root))


def _usable_cpus(logical: int, root: Path) -> int:
    """CPUs that this process may keep busy: its affinity mask (cpusets are in it), then the quota rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    quota = cpu_quota(root)
    return max(1, allowed if quota is None else min(allowed, math.ceil(quota)))


def detect_memory(root: Path = Path("/")) -> Memory:
    """Main memory from `/proc/meminfo` (else from `sysconf`), under every cgroup limit; 0 bytes where unknown."""
    fields = (line.split() for line in read_text(root / "proc/meminfo").splitlines())
    info = {field[0].rstrip(":"): int(field[1]) << 10 for field in fields if len(field) > 1 and field[1].isdecimal()}
    total = info.get("MemTotal") or _pages_bytes("SC_PHYS_PAGES")
    # Kernels before 3.14 have no MemAvailable.
    older = sum(info.get(name, 0) for name in ("MemFree", "Buffers", "Cached"))
    available = info.get("MemAvailable", older) if info else _pages_bytes("SC_AVPHYS_PAGES")
    limits = memory_limits(root)
    return Memory(
        total_bytes=total,
        available_bytes=min([available, *(limit.free_bytes for limit in limits)]),
        limit_bytes=min((limit.limit_bytes for limit in limits), default=None),
    )


def _pages_bytes(name: str) -> int:
    """A page count of `sysconf` in bytes, 0 where the system has no such name."""
    try:
        return max(os.sysconf(name), 0) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def detect_gpus() -> tuple[Gpu, ...]:
    """The CUDA devices that torch can use, in torch's order; imports torch and opens a context on each."""
    try:
        import torch
    except ImportError:
        return ()
    if not torch.cuda.is_available():
        return ()
    found = []
    for index in range(torch.cuda.device_count()):
        try:
            free_bytes, total_bytes = torch.cuda.mem_get_info(index)
            name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
        except RuntimeError as error:
            # A device in exclusive use or full to the brim answers none of these; the others still count.
            logger.warning("CUDA device %d cannot be used and is left out: %s", index, error)
            continue
        found.append(Gpu(index, name, total_bytes, free_bytes, capability))
    return tuple(found)
