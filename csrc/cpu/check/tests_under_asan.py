"""Runs the tests of the native library's Python side on the library that was built with sanitizers; see `make asan`.

LD_PRELOAD="libasan.so libstdc++.so" python csrc/cpu/check/tests_under_asan.py build/asan/_cpu.so
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import pytest  # noqa: E402

from ktitan.native import library  # noqa: E402

TESTS = (
    *(f"native/test_native_{name}.py" for name in ("arguments", "experts", "linear", "rows")),
    *(f"tiers/test_{name}.py" for name in ("store_fuzz", "reference_residency", "reference_cycle", "reference_vram")),
)

if __name__ == "__main__":
    library.LIBRARY = Path(sys.argv[1]).resolve()
    folder = ROOT / "tests" / "ktitan"
    # Without pytest's capture a sanitizer's report would be lost with the process.
    options = ["-q", "-x", "--capture=no", "-p", "no:cacheprovider"]
    sys.exit(pytest.main([*options, *(str(folder / name) for name in TESTS)]))
