"""Threads that share a job's items, and how rows are cut into items."""

import os
import threading

import pytest

pytest.importorskip("numba", reason="numba is not installed, so nothing uses these threads")
from ktitan.native.numba_workers import Workers, cut


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("items", [0, 1, 2, 57])
def test_every_item_once(count, items):
    done, lock = [], threading.Lock()

    def task(item):
        with lock:
            done.append(item)

    Workers(count).run(task, items)
    assert sorted(done) == list(range(items))


def test_items_are_shared():
    """Two threads are in the task at the same time."""
    both = threading.Barrier(2, timeout=20)
    Workers(2).run(lambda item: both.wait(), 2)


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_comes_out_and_the_threads_go_on(count):
    workers, done = Workers(count), []

    def task(item):
        if item == 5:
            raise ValueError("item 5")
        done.append(item)

    with pytest.raises(ValueError, match="item 5"):
        workers.run(task, 8)
    workers.run(done.append, 3)
    assert sorted(done[-3:]) == [0, 1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_starts_threads_of_its_own():
    workers = Workers(2)
    workers.run(lambda item: None, 4)
    child = os.fork()
    if child == 0:
        both = threading.Barrier(2, timeout=20)
        try:
            workers.run(lambda item: both.wait(), 2)
        finally:
            os._exit(0 if not both.broken else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("rows", "row_bytes", "threads"), [(1, 10, 2), (4096, 1152, 2), (1000, 1, 8), (768, 9000, 64)])
def test_pieces_cover_all_rows_in_order(rows, row_bytes, threads):
    pieces = cut(rows, rows, row_bytes, threads)
    assert [row for first, last in pieces for row in range(first, last)] == list(range(rows))
    assert all((last - first) * row_bytes >= 200_000 for first, last in pieces[:-1])
    assert all(last - first >= 16 for first, last in pieces[:-1])


def test_one_thread_gets_one_piece():
    assert cut(4096, 4096, 1152, 1) == [(0, 4096)]
    assert cut(0, 0, 1152, 2) == []
