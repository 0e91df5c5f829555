"""Processor and memory, and the limits that containers and the shell put on them."""

from __future__ import annotations

import re
import resource
from pathlib import Path

from ktitan.cgroups import cpu_quota, read_text
from ktitan.doctor.finding import Finding, format_bytes
from ktitan.hardware import detect_cpu, detect_memory, numa_nodes

__all__ = ["limits"]

# Buffers of reads in flight are locked in memory: some tens of MiB at the depths that drives like.
LEAST_LOCKED_BYTES = 64 << 20
# Shards of a large model, their drives' rings, sockets of a server.
LEAST_FILES = 1024


def limits(root: Path = Path("/")) -> list[Finding]:
    """Processors, memory, swap and huge pages, cgroup and shell limits; `root` holds `proc` and `sys`."""
    cpu, quota = detect_cpu(root), cpu_quota(root)
    cores = f"{cpu.physical_cores} cores, {cpu.usable_cpus} of {cpu.logical_cpus} CPUs usable"
    return [
        Finding("cpu", f"{cpu.name}; {cores}"),
        Finding("cgroup cpu", "no quota" if quota is None else f"{quota:g} CPUs"),
        Finding("numa nodes", str(numa_nodes(root) or "unknown")),
        *_memory(root),
        _huge_pages(root),
        _locked(*resource.getrlimit(resource.RLIMIT_MEMLOCK)),
        _files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
    ]


def _memory(root: Path) -> list[Finding]:
    memory = detect_memory(root)
    limit = "none" if memory.limit_bytes is None else format_bytes(memory.limit_bytes)
    swap = {name: int(size) << 10 for name, size in re.findall(r"(Swap\w+):\s+(\d+)", read_text(root / "proc/meminfo"))}
    total = swap.get("SwapTotal", 0)
    used = f"{format_bytes(total)}, {format_bytes(total - swap.get('SwapFree', 0))} used" if total else "none"
    return [
        Finding("memory", f"{format_bytes(memory.total_bytes)}, {format_bytes(memory.available_bytes)} available"),
        Finding("cgroup memory", limit),
        Finding("swap", used),
    ]


def _huge_pages(root: Path) -> Finding:
    text = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    mode = re.search(r"\[(\w+)\]", text)
    reserved = re.search(r"HugePages_Total:\s+(\d+)", read_text(root / "proc/meminfo"))
    value = f"transparent: {mode[1] if mode else 'unknown'}; reserved: {reserved[1] if reserved else 'unknown'}"
    if mode and mode[1] == "never":
        remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root); large weights then read faster"
        return Finding("huge pages", value, "warning", remedy)
    return Finding("huge pages", value)


def _locked(soft: int, hard: int) -> Finding:
    value = f"{_limit(soft)} of {_limit(hard)}"
    if soft != resource.RLIM_INFINITY and soft < LEAST_LOCKED_BYTES:
        remedy = "ulimit -l unlimited, or memlock in /etc/security/limits.conf; GPU copies and drive reads lock buffers"
        return Finding("memlock", value, "warning", remedy)
    return Finding("memlock", value)


def _files(soft: int, hard: int) -> Finding:
    value = " of ".join("unlimited" if limit == resource.RLIM_INFINITY else str(limit) for limit in (soft, hard))
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        return Finding("open files", value, "warning", f"ulimit -n {LEAST_FILES} or more: each shard is a file")
    return Finding("open files", value)


def _limit(size_bytes: int) -> str:
    return "unlimited" if size_bytes == resource.RLIM_INFINITY else format_bytes(size_bytes)
