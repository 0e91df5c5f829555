"""How the native library is found, capped and refused."""

import os
import platform
import shutil
import subprocess
import sys

import pytest

from ktitan import env
from ktitan.errors import HardwareError, UnsupportedError
from ktitan.hardware import detect_cpu
from ktitan.native import library, native_reason
from ktitan.native.library import ISAS, use_isa

FLAGS = {
    "avx2": {"avx", "avx2", "fma", "f16c", "bmi2"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
}


def best_isa():
    """What the kernel's flags say that this processor can do."""
    cpu = detect_cpu()
    if not cpu.has(*FLAGS["avx2"]):
        return "generic"
    return "avx512" if cpu.has(*FLAGS["avx512"]) else "avx2"


def python(code, **variables):
    """Run code in a process of its own."""
    full = {**{k: v for k, v in os.environ.items() if not k.startswith("KTITAN_")}, **variables}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=full, check=False)


@pytest.mark.skipif(
    shutil.which("g++") is None or platform.machine() != "x86_64", reason="no C++ compiler, or not x86-64"
)
def test_where_it_can_be_built_it_is():
    assert native_reason() is None, "run `pip install -e .` after a change of csrc"


@pytest.mark.parametrize("cap", ISAS)
def test_the_environment_sets_instruction_set_and_threads(native, cap):
    code = """
import torch
from ktitan.native import PackedMatrix, backend, library
from ktitan.native.library import use_isa
matrix = PackedMatrix("q8_0", 2, 32)
matrix.data[...] = 1
out = torch.empty(1, 2)
with use_isa("avx512") as name:
    backend().linear(torch.ones(1, 32), matrix, None, "int8", out)
print(name, backend().name, backend().kernel("q8_0", "int8"), library.threads(), out.abs().sum().item() > 0)
"""
    threads = {} if cap == "avx512" else {"KTITAN_THREADS": "3"}
    done = python(code, KTITAN_CPU_ISA=cap.upper(), **threads)
    lowest = min(cap, best_isa(), key=ISAS.index)
    count = str(detect_cpu().usable_cpus) if not threads else "3"
    assert done.stdout.split() == [lowest, lowest, lowest, "q8_0", "x", "int8", count, "True"], done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("KTITAN_CPU_ISA", "sse9", "'sse9'"),
        ("KTITAN_THREADS", "0", "'0' threads"),
        ("KTITAN_THREADS", "many", "'many' threads"),
        ("KTITAN_THREADS", "-2", "'-2' threads"),
        ("KTITAN_THREADS", "99999", "'99999' threads"),
    ],
)
def test_settings_that_mean_nothing(monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UnsupportedError, match=message) as caught:
        library.state.__wrapped__()
    assert caught.value.where == variable and caught.value.remedy


def test_use_isa_gives_back_what_was(native):
    before = library.isa()
    with use_isa("generic") as name:
        assert (name, library.isa(), native.name) == ("generic",) * 3
        with use_isa("avx2"):
            pass
        assert library.isa() == "generic"
    assert library.isa() == before
    with pytest.raises(UnsupportedError, match="'neon'"), use_isa("neon"):
        pass


def test_kernels_are_named_for_the_plan(native):
    with use_isa("generic"):
        assert native.kernel("q4_k", "int8") == "generic q4_k x int8"
        assert native.kernel("bf16", "int8") == "generic bf16 x float32"


def test_a_missing_library_says_why(monkeypatch, tmp_path):
    note = tmp_path / "note.txt"
    reason = library._missing_reason(tmp_path / "none.so", note)
    assert reason == "not built: the package was installed without running its build"
    note.write_text("no C++ compiler (g++: No such file or directory)\n", "utf-8")
    assert library._missing_reason(tmp_path / "none.so", note).endswith("(g++: No such file or directory)")
    note.write_text("g++ failed\ng++ -c x.cpp\nx.cpp:1: error\n", "utf-8")
    assert library._missing_reason(tmp_path / "none.so", note) == (
        f"not built: g++ failed; the compiler's messages are in {note}"
    )
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "aarch64" in library._missing_reason(library.LIBRARY, note)


def test_using_a_missing_library_is_an_error(monkeypatch):
    monkeypatch.setattr(library, "state", lambda: library.State(None, "not built: no C++ compiler"))
    with pytest.raises(HardwareError, match="not built: no C\\+\\+ compiler"):
        library.loaded()


def test_a_file_that_is_no_library(tmp_path):
    path = tmp_path / "_cpu.so"
    path.write_bytes(b"not a library")
    assert library.open_library(path).reason.startswith("not loadable: ")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler")
@pytest.mark.parametrize(
    ("source", "reason"),
    [("int kt_abi_version(void) { return 99; }", "stale: its interface is version 99"), ("int other;", "not ktitan's")],
)
def test_a_stale_library_is_refused(tmp_path, source, reason):
    (tmp_path / "x.c").write_text(source, "utf-8")
    path = tmp_path / "_cpu.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, tmp_path / "x.c"], check=True)
    found = library.open_library(path)
    assert found.handle is None and found.reason.startswith(reason) and "reinstall" in found.reason


def test_interface_version_is_the_headers(repository):
    text = (repository / "csrc/cpu/ktitan_cpu.h").read_text("utf-8")
    assert f"#define KT_ABI {library.ABI}\n" in text


def test_every_variable_says_what_it_does():
    variables = [value for value in vars(env).values() if isinstance(value, env.Variable)]
    assert {"KTITAN_CPU_ISA", "KTITAN_THREADS"} <= {variable.name for variable in variables}
    assert all(variable.effect for variable in variables)
