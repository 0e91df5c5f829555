"""Traces against caches that hold nothing (csrc/tiers/replay.h)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from ktitan.errors import BudgetError, UnsupportedError
from ktitan.native.library import loaded

__all__ = ["ReplaySpec", "Replayed", "replay", "replay_optimal"]

_OK, _NO_MEMORY = 0, 1


@dataclass(frozen=True)
class ReplaySpec:
    """A trace and a cache.

    Attributes:
        topk: [L, N, K] integers, experts chosen, ascending for a token.
        row_starts: where sequences begin, ascending from 0.
        experts: E of each layer; record l * E + e is expert e of layer l.
        record_domain: [L * E], which records compete (csrc/tiers/residency.h).
        domain_slots: most members of each domain.
        spares: further slots, for guests.
    """

    topk: np.ndarray
    row_starts: np.ndarray
    experts: int
    record_domain: tuple[int, ...]
    domain_slots: tuple[int, ...]
    spares: int = 0


@dataclass(frozen=True)
class Replayed:
    """What happened.

    Attributes:
        hit: [L, N, K] bool, whether the expert was there.
        policies: [N] int8, enum kt_policy that decided.
        passed: demands that the policy did not admit.
    """

    hit: np.ndarray
    policies: np.ndarray
    passed: int


class _Spec(ctypes.Structure):
    _fields_ = (
        ("topk", ctypes.c_void_p),
        ("row_starts", ctypes.c_void_p),
        ("record_domain", ctypes.c_void_p),
        ("domain_slots", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("layers", "tokens", "chosen", "experts", "rows", "domains", "spares")),
        ("policy", ctypes.c_int32),
        ("growth", ctypes.c_double),
    )


class _Arrays:
    """kt_replay_spec, with the arrays that it points to."""

    def __init__(self, spec: ReplaySpec, policy: int, growth: float) -> None:
        layers, tokens, chosen = spec.topk.shape
        self.hit = np.zeros(spec.topk.shape, np.uint8)
        self._kept = (
            np.ascontiguousarray(spec.topk, np.uint16),
            np.ascontiguousarray(spec.row_starts, np.int64),
            np.array(spec.record_domain, np.int32),
            np.array(spec.domain_slots, np.int64),
        )
        rows, domains = len(spec.row_starts), len(spec.domain_slots)
        sizes = (layers, tokens, chosen, spec.experts, rows, domains, spec.spares)
        self.struct = _Spec(*(array.ctypes.data for array in self._kept), *sizes, policy, growth)


def replay(spec: ReplaySpec, policy: int, growth: float) -> Replayed:
    """The store's decisions on a trace.

    Args:
        spec: the trace and the cache.
        policy: enum kt_policy; -1: the one that measures best.
        growth: what a token counts more than the one before it.

    Raises:
        HardwareError: there is no native library.
        UnsupportedError: the cache's sizes contradict each other, or there is no memory.
    """
    arrays = _Arrays(spec, policy, growth)
    policies = np.zeros(spec.topk.shape[1], np.int8)
    call = loaded().kt_replay
    call.restype = ctypes.c_int64
    passed = call(
        ctypes.byref(arrays.struct), ctypes.c_void_p(arrays.hit.ctypes.data), ctypes.c_void_p(policies.ctypes.data)
    )
    if passed < 0:
        raise UnsupportedError("no cache of these sizes", "replay", "give each domain at least one slot")
    return Replayed(arrays.hit.view(bool), policies, int(passed))


def replay_optimal(spec: ReplaySpec, bypass: bool) -> np.ndarray:
    """Hits of a cache that knows the future, [L, N, K] bool; with `bypass` a miss need not stay.

    Raises:
        HardwareError: there is no native library.
        BudgetError: there is no memory for it.
        UnsupportedError: the cache's sizes contradict each other.
    """
    arrays = _Arrays(spec, 0, 1.0)
    call = loaded().kt_replay_optimal
    call.restype = ctypes.c_int32
    status = call(ctypes.byref(arrays.struct), ctypes.c_bool(bypass), ctypes.c_void_p(arrays.hit.ctypes.data))
    if status == _NO_MEMORY:
        raise BudgetError("no memory to replay the trace", "replay", "give a shorter trace")
    if status != _OK:
        raise UnsupportedError("no cache of these sizes", "replay", "give each domain at least one slot")
    return arrays.hit.view(bool)
