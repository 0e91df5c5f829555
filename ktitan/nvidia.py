"""NVIDIA GPUs and their driver, without torch: from `nvidia-smi`, which comes with the driver, or from `/proc`.

What cannot be found out is None. Functions that read files take the root of the tree that holds `proc`.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ktitan.cgroups import read_text

__all__ = ["Gpu", "driver_version", "visible_gpus"]

SECONDS = 10.0
_FIELDS = ("index", "name", "memory.total", "memory.free", "compute_cap", "pcie.link.gen.max", "pcie.link.width.max")


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver numbers it (CUDA may number them otherwise); `capability` is like "9.0".

    `pcie` is the best link that GPU and slot can have, like "gen 5 x16"; an idle GPU may be on a slower one.
    """

    index: int
    name: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    capability: str | None = None
    pcie: str | None = None


def visible_gpus(root: Path = Path("/"), command: str = "nvidia-smi") -> tuple[Gpu, ...]:
    """The GPUs that `nvidia-smi` lists; names alone where only `/proc/driver/nvidia` knows them; empty without any."""
    query = [command, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return _gpus_of_proc(root)
    rows = ([cell.strip() for cell in line.split(",")] for line in listed.splitlines())
    return tuple(_gpu(row) for row in rows if len(row) == len(_FIELDS) and row[0].isdecimal())


def driver_version(root: Path = Path("/")) -> str | None:
    """The kernel driver's version ("570.86.15"), None when it is not loaded."""
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", read_text(root / "proc/driver/nvidia/version"))
    return found[1] if found else None


def _gpu(row: list[str]) -> Gpu:
    index, name, total, free, capability, generation, width = row
    known = capability if re.fullmatch(r"\d+\.\d+", capability) else None
    link = f"gen {generation} x{width}" if generation.isdecimal() and width.isdecimal() else None
    return Gpu(int(index), name, _mebibytes(total), _mebibytes(free), known, link)


def _mebibytes(text: str) -> int | None:
    """Bytes of a count of MiB; None for "[N/A]", which some GPUs with shared memory say."""
    return int(text) << 20 if text.isdecimal() else None


def _gpus_of_proc(root: Path) -> tuple[Gpu, ...]:
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    names = (re.search(r"^Model:\s*(.+)$", read_text(file), re.M) for file in files)
    return tuple(Gpu(index, name[1].strip() if name else "unknown") for index, name in enumerate(names))
