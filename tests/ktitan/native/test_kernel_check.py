"""The kernel check program on the built library: every unit against the generic one, here and emulated."""

import shutil
import subprocess

import pytest
from test_native_symbols import CXX, needs

from ktitan.native import library

EMULATOR = "qemu-x86_64"


@pytest.fixture(scope="module")
def program(native, repository, tmp_path_factory):
    if shutil.which(CXX[0]) is None:
        pytest.skip(f"no {CXX[0]}")
    made = tmp_path_factory.mktemp("check") / "kernel_check"
    source = repository / "csrc/cpu/check/kernel_check.cpp"
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", f"-Wl,-rpath,{library.LIBRARY.parent}"]
    subprocess.run([*CXX, *flags, source, library.LIBRARY, "-o", made], check=True)
    return made


def report(*command):
    """{check: (hash, units)} of a run that found no difference."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) > 30
    return {name: (digest, tuple(units)) for name, digest, *units in lines}


@pytest.fixture(scope="module")
def here(program):
    return report(program, "--seed", "11")


def test_every_unit_of_this_processor_has_the_bits_of_the_generic_one(here):
    assert {"q4_k", "iq2_xxs", "nvfp4", "bf16", "quantize", "activate", "rows", "weights"} <= set(here)
    assert {digest for digest, _ in here.values()}


@needs(EMULATOR)
@pytest.mark.parametrize(("processor", "units"), [("Nehalem", 0), ("Haswell", 1)])
def test_lesser_processors_give_the_same_bits(program, here, processor, units):
    """Nehalem has no AVX, Haswell no AVX-512; the emulator reads what masked loads leave out, hence no guard pages."""
    found = report(EMULATOR, "-cpu", processor, program, "--no-guard", "--seed", "11")
    assert {name: digest for name, (digest, _) in found.items()} == {name: digest for name, (digest, _) in here.items()}
    assert {len(compared) for name, (_, compared) in found.items() if name == "q4_k"} == {units}
