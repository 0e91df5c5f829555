"""Maps the repository's folders to import names and builds the native CPU library; the rest stands in pyproject.toml.

The library is optional: without a C++ compiler the package installs and computes with numba. `ktitan/native/_cpu.so` is
no Python extension (ktitan loads it with ctypes), so one wheel serves every Python version of a platform.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# Only the folders with generic names are mapped, so that `operators` and `injection_rules` install below `ktitan`.
MAPPED = {"operators": "ktitan.operators", "injection_rules": "ktitan.injection_rules"}

SOURCES = (Path("csrc/cpu"), Path("csrc/tiers"), Path("csrc/program"))
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
ISAS = ("generic", "avx2", "avx512")  # enum kt_isa_level of csrc/cpu/ktitan_cpu.h
SANITIZERS = ("address", "undefined", "thread")
PREFIX = "KTITAN_BUILD_"


class BuildError(Exception):
    """The library cannot be built here; the text says why."""


@dataclass(frozen=True)
class Switches:
    """The KTITAN_BUILD_* variables, one field each; CONTRIBUTING.md has their table.

    Attributes:
        native: "auto" builds the library where that is possible, "1" fails where it is not, "0" leaves it out.
        isa: highest instruction set that a unit is built for, of `ISAS`.
        jobs: compilers that run at a time.
        debug: symbols and little optimisation.
        sanitize: of `SANITIZERS`.
    """

    native: str = "auto"
    isa: str = ISAS[-1]
    jobs: int = os.cpu_count() or 1
    debug: bool = False
    sanitize: tuple[str, ...] = ()

    def sources(self, every: list[str]) -> list[str]:
        """`every` source without the units above `isa`."""
        above = {f"unit_{isa}.cpp" for isa in ISAS[ISAS.index(self.isa) + 1 :]}
        return [source for source in every if Path(source).name not in above]

    def compile_flags(self) -> list[str]:
        """Flags that follow the usual ones, so that they win."""
        level = ["-Og" if self.debug else "-O1", "-g", "-fno-omit-frame-pointer"]
        flags = level if self.debug or self.sanitize else []
        return [f"-DKT_HIGHEST_ISA={ISAS.index(self.isa)}", *flags, *self._sanitizers()]

    def link_flags(self) -> list[str]:
        """Every symbol must be found at link time, but for a sanitizer's, which the preloaded runtime has."""
        return self._sanitizers() or ["-Wl,-z,defs"]

    def _sanitizers(self) -> list[str]:
        return [f"-fsanitize={','.join(self.sanitize)}", "-fno-sanitize-recover=all"] if self.sanitize else []


def one_of(*allowed: str) -> Callable[[str], str]:
    """A reader of one of these words."""
    return lambda text: allowed[allowed.index(text)]


def some_of(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    """A reader of a list of these words with commas between them."""
    return lambda text: tuple(one_of(*allowed)(word.strip()) for word in text.split(","))


def count(text: str) -> int:
    """A whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


# Each switch with its reader, which raises ValueError, and the values that it takes.
READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "native": (one_of("auto", "0", "1"), "auto, 0 or 1"),
    "isa": (one_of(*ISAS), "generic, avx2 or avx512"),
    "jobs": (count, "a number above 0"),
    "debug": (lambda text: one_of("0", "1")(text) == "1", "0 or 1"),
    "sanitize": (some_of(*SANITIZERS), f"some of {', '.join(SANITIZERS)}, with commas"),
}


def read_switches(environment: Mapping[str, str]) -> Switches:
    """The switches in `environment`; empty ones count as unset.

    Raises:
        SystemExit: names that are no switch and values that mean nothing, all in one message.
    """
    faults: list[str] = []
    chosen: dict[str, Any] = {}
    for name in sorted(name for name, value in environment.items() if name.startswith(PREFIX) and value.strip()):
        key = name.removeprefix(PREFIX).lower()
        if key not in READERS:
            faults.append(f"{name} is no switch; there are {', '.join(PREFIX + known.upper() for known in READERS)}")
            continue
        read, allowed = READERS[key]
        try:
            chosen[key] = read(environment[name].strip().lower())
        except ValueError:
            faults.append(f"{name} is {environment[name]!r}; it takes {allowed}")
    if faults:
        raise SystemExit("ktitan cannot be built: " + "; ".join(faults))
    return Switches(**chosen)


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


def build_library(sources: list[str], folder: Path, target: Path, switches: Switches) -> None:
    """Compile `sources` into objects in `folder` and link them to the shared library `target`.

    Raises:
        BuildError: it is switched off, the machine is no x86-64, or the compiler is missing or fails.
    """
    if switches.native == "0":
        raise BuildError(f"{PREFIX}NATIVE=0 left it out")
    if platform.machine() not in ("x86_64", "AMD64"):
        raise BuildError(f"there are kernels for x86-64 only, and this machine is {platform.machine()}")
    folder.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    sources = switches.sources(sources)
    # Files of two folders may share a name.
    objects = [str(folder / f"{Path(source).parent.name}-{Path(source).stem}.o") for source in sources]

    def compile_one(source: str, output: str) -> None:
        flags = ISA_FLAGS.get(Path(source).name, ["-march=x86-64"])
        call([*compiler(), *PLAIN, *EXACT, *CLOSED, *flags, *switches.compile_flags(), "-c", source, "-o", output])

    with ThreadPoolExecutor(switches.jobs) as pool:
        list(pool.map(compile_one, sources, objects))
    # Renamed into place, so that a process that has the old library mapped keeps it whole.
    made = target.with_suffix(".tmp")
    call([*compiler(), "-shared", "-pthread", *switches.link_flags(), "-Wl,--as-needed", *objects, "-o", str(made)])
    made.replace(target)


class BuildNative(build_ext):
    """Builds the library, or says why it cannot and lets the install go on.

    Attributes:
        left_out: it ran and there is no library.
    """

    left_out = False

    def get_ext_filename(self, fullname: str) -> str:
        """`_cpu.so` whatever the Python version: it is loaded by ctypes."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        """Build `_cpu.so`, or leave the reason beside its place.

        Raises:
            SystemExit: KTITAN_BUILD_NATIVE=1, and it cannot be built.
        """
        switches = read_switches(os.environ)
        target = Path(self.get_ext_fullpath(ext.name))
        note = target.with_name(NOTE)
        for stale in (target, note):
            stale.unlink(missing_ok=True)
        try:
            build_library(sorted(ext.sources), Path(self.build_temp), target, switches)
        except BuildError as error:
            if switches.native == "1":
                raise SystemExit(f"{PREFIX}NATIVE=1, but the native CPU library cannot be built: {error}") from error
            self.left_out = True
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
    """Names the wheel by its platform alone, since the library knows nothing of Python; without it, by nothing."""

    def get_tag(self) -> tuple[str, str, str]:
        """`py3-none-<platform>`, or `py3-none-any` when the build left the library out."""
        return "py3", "none", "any" if self._left_out() else super().get_tag()[2]

    def write_wheelfile(self, *arguments: Any, **options: Any) -> None:
        """Write the file WHEEL, which says once more whether there is native code."""
        self.root_is_pure = self._left_out()
        super().write_wheelfile(*arguments, **options)

    def _left_out(self) -> bool:
        command: Any = self.get_finalized_command("build_ext")
        return bool(command.left_out)


COMMANDS: dict[str, Any] = {"build_ext": BuildNative, "bdist_wheel": PlatformWheel}


def main() -> None:
    """Run the command that setuptools was asked for."""
    read_switches(os.environ)  # a wrong switch stops every command, before any work
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
                sources=[path.as_posix() for folder in SOURCES for path in sorted(folder.glob("*.cpp"))],
                depends=[path.as_posix() for folder in SOURCES for path in sorted(folder.glob("*.h"))],
            )
        ],
        include_package_data=False,  # MANIFEST.in is about source archives only
        cmdclass=COMMANDS,
    )


if __name__ == "__main__":
    main()
