"""Nothing compiled for one instruction set may be used by code for another: symbols of units and of the library."""

import os
import re
import shlex
import shutil
import subprocess

import pytest

from ktitan.native import library

SHARED_TABLES = re.compile(r"kt_grid_\w+")
C_LIBRARY = {"memcpy", "memset", "memmove", "fmaf", "rintf", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}
ISA_FLAGS = {
    "generic": "-march=x86-64",
    "avx2": "-mavx2 -mfma -mf16c -mbmi2",
    "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c -mbmi2",
}


def symbols(path, *options):
    """[(kind, name)] by nm, versions cut off."""
    listed = subprocess.run(["nm", *options, str(path)], capture_output=True, text=True, check=True).stdout
    fields = (line.split() for line in listed.splitlines())
    return [(field[-2], field[-1].partition("@")[0]) for field in fields if len(field) >= 2]


def needs(*tools):
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}")


CXX = shlex.split(os.environ.get("CXX", "")) or ["g++"]


@needs("nm", CXX[0])
@pytest.mark.parametrize("unit", ISA_FLAGS)
def test_a_unit_exports_its_table_alone(repository, tmp_path, unit):
    """Compiled without optimisation, where every inline function that could leak is there."""
    source, output = repository / f"csrc/cpu/unit_{unit}.cpp", tmp_path / "unit.o"
    flags = ["-std=c++17", "-O0", "-fno-exceptions", "-fno-rtti", "-fPIC", *ISA_FLAGS[unit].split()]
    subprocess.run([*CXX, *flags, "-c", source, "-o", output], check=True)
    found = symbols(output)
    exported = [(kind, name) for kind, name in found if (kind.isupper() and kind != "U") or kind in "vwu"]
    assert [name for _, name in exported] == [f"kt_unit_{unit}"], exported
    used = {name for kind, name in found if kind == "U"}
    assert {name for name in used if not SHARED_TABLES.fullmatch(name)} <= C_LIBRARY


@needs("nm")
def test_the_library_exports_its_interface_alone(native, repository):
    program = repository / "csrc/program/ktitan_program.h"
    headers = [repository / "csrc/cpu/ktitan_cpu.h", program, *(repository / "csrc/tiers").glob("*.h")]
    text = "\n".join(header.read_text("utf-8") for header in headers)
    declared = set(re.findall(r"^KT_API [\w *]+?(kt_\w+)\(", text, re.M))
    found = symbols(library.LIBRARY, "-D", "--defined-only")
    assert {name for _, name in found} == declared
    assert {kind for kind, _ in found} == {"T"}


@needs("nm")
def test_the_library_needs_no_cpp_runtime(native):
    used = {name for kind, name in symbols(library.LIBRARY, "-D", "--undefined-only") if kind == "U"}
    assert not {name for name in used if name.startswith("_Z") or "cxa_throw" in name or "gxx" in name}
    assert {name for name in used if name in ("pthread_create", "memcpy")}


@needs("objdump")
def test_the_library_runs_on_old_systems(native):
    """glibc 2.17 is manylinux2014; torch's own wheels ask for 2.28."""
    listed = subprocess.run(["objdump", "-T", str(library.LIBRARY)], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([\d.]+)", listed)}
    assert max(versions) <= (2, 17)
