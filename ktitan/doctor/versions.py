"""The versions of ktitan, of what it needs, and of the system."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import ktitan
from ktitan.doctor.finding import Finding

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

__all__ = ["versions"]

# The code manages without: /proc/cpuinfo says the same.
_DISPENSABLE = ("cpufeature",)
_REINSTALL = "pip install --upgrade ktitan"


def versions() -> list[Finding]:
    """ktitan, Python and every package that ktitan's own metadata requires; then the system's."""
    return [
        Finding("ktitan", f"{ktitan.__version__} in {Path(ktitan.__file__).parent}"),
        Finding("python", f"{platform.python_version()} {platform.python_implementation()}"),
        *_requirements(),
        Finding("system", _system()),
        Finding("kernel", f"{platform.system()} {platform.release()} {platform.machine()}"),
        Finding("libc", " ".join(platform.libc_ver()).strip() or "unknown"),
    ]


def _requirements() -> list[Finding]:
    # pip's own rules for what satisfies what; a dependency of huggingface_hub, which transformers needs.
    from packaging.requirements import Requirement

    try:
        texts = metadata.requires("ktitan") or []
    except metadata.PackageNotFoundError:
        remedy = "pip install it, so that pip sees to what it needs"
        return [Finding("packages", "ktitan runs uninstalled; what it needs is not checked", "warning", remedy)]
    needed = [Requirement(text) for text in texts]
    return [
        _requirement(each.name, each.specifier)
        for each in needed
        if each.marker is None or each.marker.evaluate({"extra": ""})
    ]


def _requirement(name: str, wanted: SpecifierSet) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, f"missing; {wanted} is needed", "warning" if name in _DISPENSABLE else "error", _REINSTALL)
    if not wanted.contains(version, prereleases=True):
        return Finding(name, f"{version}; {wanted} is needed", "error", _REINSTALL)
    return Finding(name, version)


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"
