"""Fixtures for tests of the native library: skipped where it is not built."""

import time

import numpy as np
import pytest

from ktitan.native import backend, library, native_reason


@pytest.fixture(scope="session")
def native():
    """The backend of the native library."""
    reason = native_reason()
    if reason is not None:
        pytest.skip(f"native library {reason}")
    return backend()


@pytest.fixture
def rng():
    """Fresh numbers in every run; a failure prints the seed."""
    seed = time.time_ns()
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def two_threads(native):
    """Two threads however many processors there are, and what was before afterwards."""
    before = library.threads()
    library.set_threads(2)
    yield
    library.set_threads(before)
