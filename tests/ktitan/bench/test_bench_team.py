"""Threads that keep their part."""

from __future__ import annotations

import threading

import pytest

from ktitan.bench.team import Team


def test_part_i_always_runs_on_thread_i():
    with Team(3) as team:
        first = team.run(lambda part: (part, threading.get_ident()), "abc")
        second = team.run(lambda part: (part, threading.get_ident()), "xyz")
    assert [part for part, _ in first + second] == list("abcxyz")
    assert [thread for _, thread in first] == [thread for _, thread in second]
    assert len({thread for _, thread in first}) == 3


def test_parts_run_at_once():
    barrier = threading.Barrier(4, timeout=10)
    with Team(4) as team:
        team.run(lambda _part: barrier.wait(), range(4))


def test_errors_come_back_and_threads_end():
    before = threading.active_count()
    with Team(2) as team, pytest.raises(ZeroDivisionError):
        team.run(lambda part: 1 // part, [1, 0])
    assert threading.active_count() == before


def test_as_many_parts_as_threads():
    with Team(2) as team, pytest.raises(ValueError, match=r"longer|shorter"):
        team.run(str, [1, 2, 3])
