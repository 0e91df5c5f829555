"""Maps the repository's folders to import names and builds the native CPU library; the rest stands in pyproject.toml.

The library is optional: without a C++ compiler the package installs and computes with numba. `ktitan/native/_cpu.so` is
no Python extension (ktitan loads it with ctypes), so one wheel serves every Python version of a platform.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# Only the folders with generic names are mapped, so that `operators` and `injection_rules` install below `ktitan`.
MAPPED = {"operators": "ktitan.operators", "injection_rules": "ktitan.injection_rules"}

SOURCES = Path("csrc/cpu")
LIBRARY = "ktitan.native._cpu"
# Says why there is no library; ktitan.native reads it.
NOTE = "_cpu_build.txt"

PLAIN = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-Wall", "-Wextra"]
EXACT = ["-ffp-contract=off"]  # the compiler must not fuse what the arithmetic contract rounds
CLOSED = ["-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"]
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
# Each unit is compiled for its instruction set and everything else for any x86-64; see csrc/cpu/README.md.
ISA_FLAGS = {"unit_avx2.cpp": AVX2, "unit_avx512.cpp": [*AVX512, *AVX2]}


class BuildError(Exception):
    """The library cannot be built here; the text says why."""


def packages_below(folder: str, name: str) -> list[str]:
    """`folder` and its subpackages under the import name `name`."""
    return [name, *(f"{name}.{package}" for package in find_packages(folder))]


def compiler() -> list[str]:
    """The C++ compiler's command: $CXX, or g++."""
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def call(command: list[str]) -> None:
    """Run the compiler.

    Raises:
        BuildError: it is missing or fails; with its message.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"no C++ compiler ({command[0]}: {error.strerror})") from error
    if done.returncode:
        raise BuildError(f"{command[0]} failed\n{shlex.join(command)}\n{done.stderr.strip()}")


def build_library(sources: list[str], folder: Path, target: Path) -> None:
    """Compile `sources` into objects in `folder` and link them to the shared library `target`.

    Raises:
        BuildError: the machine is no x86-64, or the compiler is missing or fails.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise BuildError(f"there are kernels for x86-64 only, and this machine is {platform.machine()}")
    folder.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    objects = [str(folder / f"{Path(source).stem}.o") for source in sources]

    def compile_one(source: str, output: str) -> None:
        flags = ISA_FLAGS.get(Path(source).name, ["-march=x86-64"])
        call([*compiler(), *PLAIN, *EXACT, *CLOSED, *flags, "-c", source, "-o", output])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources, objects))
    # Renamed into place, so that a process that has the old library mapped keeps it whole.
    made = target.with_suffix(".tmp")
    call([*compiler(), "-shared", "-pthread", "-Wl,-z,defs", "-Wl,--as-needed", *objects, "-o", str(made)])
    made.replace(target)


class BuildNative(build_ext):
    """Builds the library, or says why it cannot and lets the install go on."""

    def get_ext_filename(self, fullname: str) -> str:
        """`_cpu.so` whatever the Python version: it is loaded by ctypes."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        """Build `_cpu.so`, or leave the reason beside its place."""
        target = Path(self.get_ext_fullpath(ext.name))
        note = target.with_name(NOTE)
        for stale in (target, note):
            stale.unlink(missing_ok=True)
        try:
            build_library(sorted(ext.sources), Path(self.build_temp), target)
        except BuildError as error:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{error}\n", encoding="utf-8")
            self.warn(f"the native CPU library was not built; ktitan will compute with numba, slower: {error}")

    def copy_extensions_to_source(self) -> None:
        """For an editable install: the library or the reason goes into the source tree, and the other one leaves it."""
        built = Path(self.build_lib, self.get_ext_filename(LIBRARY))
        home = Path("ktitan/native")
        for name in (built.name, NOTE):
            source, target = built.with_name(name), home / name
            target.unlink(missing_ok=True)
            if source.is_file():
                self.copy_file(str(source), str(target))


class PlatformWheel(bdist_wheel):
    """Names the wheel by its platform alone: the library knows nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """`py3-none-<platform>`."""
        return "py3", "none", super().get_tag()[2]


COMMANDS: dict[str, Any] = {"build_ext": BuildNative, "bdist_wheel": PlatformWheel}
setup(
    packages=[*packages_below("ktitan", "ktitan"), *(p for f, n in MAPPED.items() for p in packages_below(f, n))],
    package_dir={"ktitan": "ktitan", **{name: folder for folder, name in MAPPED.items()}},
    package_data={
        "ktitan.injection_rules": ["*.yaml", "parts/*.yaml"],
        "ktitan": ["py.typed"],
        "ktitan.server": ["page/*", "page/vendor/*"],
    },
    ext_modules=[
        Extension(
            LIBRARY,
            sources=[path.as_posix() for path in sorted(SOURCES.glob("*.cpp"))],
            depends=[path.as_posix() for path in sorted(SOURCES.glob("*.h"))],
        )
    ],
    include_package_data=False,  # MANIFEST.in is about source archives only
    cmdclass=COMMANDS,
)
