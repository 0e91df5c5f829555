"""GPUs, their driver, NVRTC, and what torch makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ktitan.doctor.finding import Finding, format_bytes
from ktitan.native.nvrtc import nvrtc_version
from ktitan.nvidia import Gpu, driver_version, visible_gpus

__all__ = ["gpu"]

# torch takes a second or two, many on a cold network drive.
SECONDS = 60.0
_PROBE = """
import json, sys, torch
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
sys.stdout.write(json.dumps({"cuda": torch.version.cuda, "hip": torch.version.hip, "gpus": gpus}))
"""
_TORCH_REMEDY = "reinstall torch (pytorch.org/get-started), then run: python -c 'import torch'"


def gpu() -> list[Finding]:
    """Driver, GPUs, NVRTC and torch; torch is imported by another process, with a time limit."""
    gpus, driver, nvrtc = visible_gpus(), driver_version(), nvrtc_version()
    findings = [
        Finding("driver", driver or ("unknown" if gpus else "none")),
        *(Finding(f"gpu {each.index}", _describe(each)) for each in gpus),
        Finding("nvrtc", nvrtc or "none"),
    ]
    if gpus and nvrtc is None:
        findings[-1] = Finding("nvrtc", "none", "warning", "pip install a torch with CUDA, which brings it")
    return [*findings, _torch(len(gpus))]


def _describe(each: Gpu) -> str:
    sizes = [
        f"{format_bytes(size)}{what}" for size, what in ((each.total_bytes, ""), (each.free_bytes, " free")) if size
    ]
    capability = [f"compute capability {each.capability}"] if each.capability else []
    return ", ".join([each.name, *sizes, *capability])


def _torch(gpus: int) -> Finding:
    """What torch says of GPUs; an error when it cannot be imported."""
    try:
        facts = probe_torch()
    except subprocess.TimeoutExpired:
        remedy = "try again, with Python's packages on a local drive"
        return Finding("torch", f"its import took more than {SECONDS:.0f} s", "warning", remedy)
    if "fault" in facts:
        return Finding("torch", f"cannot be imported: {facts['fault']}", "error", _TORCH_REMEDY)
    built = f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPUs only"
    value = f"built for {built}; {facts['gpus']} GPUs usable"
    if gpus and not facts["gpus"]:
        remedy = (
            "install a torch that is built for this driver's CUDA (pytorch.org/get-started); see CUDA_VISIBLE_DEVICES"
        )
        return Finding("torch", value, "warning", remedy)
    return Finding("torch", value)


def probe_torch() -> dict[str, Any]:
    """What torch says in a process of its own, or the last line of what it said instead as `fault`.

    Raises:
        subprocess.TimeoutExpired: it takes more than a minute.
    """
    # Started in the root folder, so that no file of the user's hides a module.
    command = [sys.executable, "-c", _PROBE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=Path("/"), check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return {"fault": said[-1] if said else f"exit code {done.returncode}"}
    facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return facts
