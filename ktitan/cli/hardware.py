"""`ktitan --hardware`: what this machine is, at once and without torch; what takes time only when it is asked for."""

from __future__ import annotations

import dataclasses
import json as json_format
from typing import Any

import typer

from ktitan.hardware import UNKNOWN, Cache, detect_cpu, detect_memory, numa_nodes, processor_caches
from ktitan.nvidia import driver_version, visible_gpus

__all__ = ["hardware_facts", "show_hardware"]

# What the kernels of this and later versions choose by.
FLAGS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "bmi2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve"),
)
GIB = 1 << 30
RATES = ("h2d_gb_per_s", "d2h_gb_per_s")
NOT_MEASURED = f"{UNKNOWN} (--measure measures it)"


def show_hardware(as_json: bool, measures: bool = False, model: str | None = None) -> None:
    """Write the machine's facts to stdout, as lines or as one JSON object; measured ones where it `measures`.

    Raises:
        KtitanError: as `ktitan.cli.hardware_measure.add_measured`.
    """
    facts = hardware_facts()
    if measures:
        from ktitan.cli.hardware_measure import add_measured

        typer.echo("measuring, some seconds", err=True)
        add_measured(facts, model)
    typer.echo(json_format.dumps(facts, indent=2) if as_json else "\n".join(_lines(facts)))


def hardware_facts() -> dict[str, Any]:
    """The machine as plain data; what is unknown is None, sizes are bytes."""
    cpu, memory = detect_cpu(), detect_memory()
    return {
        "cpu": {
            "name": cpu.name,
            "flags": [flag for flag in FLAGS if cpu.has(flag)],
            "physical_cores": cpu.physical_cores,
            "logical_cpus": cpu.logical_cpus,
            "usable_cpus": cpu.usable_cpus,
            "numa_nodes": numa_nodes() or None,
            "caches": [dataclasses.asdict(cache) for cache in processor_caches()],
        },
        "memory": {
            "total_bytes": memory.total_bytes or None,
            "available_bytes": memory.available_bytes or None,
            "limit_bytes": memory.limit_bytes,
            "read_gb_per_s": None,
        },
        "gpus": [{**dataclasses.asdict(gpu), **dict.fromkeys(RATES)} for gpu in visible_gpus()],
        "driver": driver_version(),
        "drive": None,
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    cpu, memory = facts["cpu"], facts["memory"]
    caches = ", ".join(_cache(Cache(**cache)) for cache in cpu["caches"])
    limit = "none" if memory["limit_bytes"] is None else _gib(memory["limit_bytes"])
    rows = [
        ("CPU", cpu["name"]),
        ("  cores", f"{cpu['physical_cores']} physical, {cpu['logical_cpus']} logical, {cpu['usable_cpus']} usable"),
        ("  NUMA nodes", cpu["numa_nodes"] or UNKNOWN),
        ("  caches", caches or UNKNOWN),
        ("  flags", " ".join(cpu["flags"]) or UNKNOWN),
        ("RAM", f"{_gib(memory['total_bytes'])}, {_gib(memory['available_bytes'])} available"),
        ("  cgroup limit", limit),
        ("  read", _rate(memory["read_gb_per_s"])),
    ]
    for gpu in facts["gpus"]:
        rates = [f"{name[:3]} {gpu[name]:g} GB/s" for name in RATES if gpu[name] is not None]
        rows += [("GPU", _gpu(gpu)), ("  PCIe", ", ".join([gpu["pcie"] or UNKNOWN, *rates]))]
    if not facts["gpus"]:
        rows.append(("GPU", "none seen"))
    if facts["driver"]:
        rows.append(("  driver", facts["driver"]))
    rows += _drive_rows(facts["drive"])
    return [f"{title:<16}{value}" for title, value in rows]


def _drive_rows(drive: dict[str, Any] | None) -> list[tuple[str, str]]:
    if drive is None:
        return [("drive", f"{UNKNOWN} (-m MODEL measures the one under it)")]
    rates = {name.removesuffix("_gb_per_s"): rate for name, rate in drive.items() if name.endswith("_gb_per_s")}
    return [
        ("drive", f"{drive['device'] or UNKNOWN}, by {drive['file']}"),
        ("  reads", ", ".join(f"{name.replace('_', ' ')} {rate:g} GB/s" for name, rate in rates.items())),
        ("  measured as", drive["how"]),
    ]


def _rate(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:g} GB/s"


def _cache(cache: Cache) -> str:
    kind = {"data": "d", "instruction": "i"}.get(cache.kind, "")
    size = f"{cache.size_bytes >> 10} KiB" if cache.size_bytes < 1 << 20 else f"{cache.size_bytes / (1 << 20):g} MiB"
    return f"L{cache.level}{kind} {cache.count} x {size}"


def _gpu(gpu: dict[str, Any]) -> str:
    capability = f"compute capability {gpu['capability'] or UNKNOWN}"
    return f"{gpu['index']}: {gpu['name']}, {_gib(gpu['total_bytes'])}, {_gib(gpu['free_bytes'])} free, {capability}"


def _gib(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else f"{size_bytes / GIB:.1f} GiB"
