"""Operators are tested on tiny models, where a second thread costs more than it brings."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """One torch thread while these tests run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
