"""The C interface: random bytes and wrong arguments get a status; the sanitized build is made as the real one is."""

import re
import runpy
import shutil
import subprocess
import time

import pytest
from test_native_symbols import CXX

from ktitan.native import library


def test_any_bytes_and_wrong_arguments_get_the_right_status(native, repository, tmp_path):
    """Without sanitizers here; `make asan` runs more of it with them."""
    if shutil.which(CXX[0]) is None:
        pytest.skip(f"no {CXX[0]}")
    source, made = repository / "csrc/cpu/check/api_fuzz.cpp", tmp_path / "api_fuzz"
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", f"-Wl,-rpath,{library.LIBRARY.parent}"]
    subprocess.run([*CXX, *flags, source, library.LIBRARY, "-o", made], check=True)
    done = subprocess.run([made, "--seed", str(time.time_ns()), "--calls", "3000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"kt_experts \d+ calls, 0 wrong$", done.stdout.strip())


def test_sanitized_units_have_the_flags_of_real_ones(repository, monkeypatch):
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    real = runpy.run_path(str(repository / "setup.py"))
    made = (repository / "csrc/cpu/check/Makefile").read_text("utf-8")
    variables = dict(re.findall(r"^(\w+) := (.*)$", made, re.M))
    for unit, flags in real["ISA_FLAGS"].items():
        stated = variables[f"ISA_{unit.removesuffix('.cpp')}"].replace("$(ISA_unit_avx2)", variables["ISA_unit_avx2"])
        assert stated.split() == flags
    assert {*real["EXACT"], *real["CLOSED"], "-std=c++17", "-fPIC"} <= set(variables["FLAGS"].split())
