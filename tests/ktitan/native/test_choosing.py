"""The native choice of a token under random bits; that it is the plain one: tests/ktitan/engine/test_quick_choice."""

import random
import shutil
import subprocess

import pytest
from test_native_symbols import CXX

from ktitan.native import library


def test_any_bits_and_wrong_options(repository, tmp_path):
    """Without sanitizers here; `make asan` runs more of it with them."""
    if shutil.which(CXX[0]) is None:
        pytest.skip(f"no {CXX[0]}")
    source, made = repository / "csrc/cpu/check/choose_fuzz.cpp", tmp_path / "choose_fuzz"
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", f"-Wl,-rpath,{library.LIBRARY.parent}"]
    subprocess.run([*CXX, *flags, source, library.LIBRARY, "-o", made], check=True)
    seed = str(random.randrange(2**40))
    done = subprocess.run([made, "--seed", seed, "--calls", "1000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
