"""Who stays: `ktitan.tiers.reference.Residency` and `Auto` in C++."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_double, c_int32, c_int64, c_void_p
from typing import Any

import numpy as np

from ktitan.native.decisions_owner import Ids, Owner, library, numbers

__all__ = ["NativeAuto", "NativeResidency"]

POLICIES = 7  # KT_POLICIES


class _Placed(ctypes.Structure):
    _fields_ = (
        ("slot", c_int64),
        ("victim", c_int64),
        ("displaced", c_int64),
        ("foreseen", c_int32),
        ("guest", c_int32),
    )


class _Spec(ctypes.Structure):
    _fields_ = (
        ("pool_slots", Ids),
        ("pool_spares", Ids),
        ("record_pool", POINTER(c_int32)),
        ("record_domain", POINTER(c_int32)),
        ("domain_slots", Ids),
        ("records", c_int64),
        ("pools", c_int32),
        ("domains", c_int32),
        ("policy", c_int32),
        ("growth", c_double),
    )


class _Move(ctypes.Structure):
    _fields_ = (("record", c_int64), ("origin", c_int64), ("to", c_int64))


def _maybe(values: Sequence[int] | None, kind: Any = c_int64) -> Any:
    return None if values is None else numbers(values, kind)


class NativeResidency(Owner):
    """`ktitan.tiers.reference.Residency` in C++; `spec` is its `ResidencySpec`."""

    def __init__(self, spec: Any) -> None:
        self._records = len(spec.record_pool)
        struct = _Spec(
            numbers(spec.pool_slots),
            _maybe(spec.pool_spares),
            numbers(spec.record_pool, c_int32),
            _maybe(spec.record_domain, c_int32),
            _maybe(spec.domain_slots),
            self._records,
            len(spec.pool_slots),
            len(spec.domain_slots or ()),
            spec.policy,
            spec.growth,
        )
        super().__init__("residency", library().kt_residency_create(ctypes.byref(struct)))
        self._placed = _Placed()
        self._placed_at = ctypes.byref(self._placed)

    @property
    def handle(self) -> int:
        """Address of the struct."""
        return self._handle

    def step(self, tokens: int) -> None:
        """The model takes a step."""
        self._call("step", tokens)

    def sequence(self) -> None:
        """A sequence begins."""
        self._call("sequence")

    def set_policy(self, policy: int) -> None:
        """Another policy from now on."""
        self._call("set_policy", policy)

    def pin(self, record: int, pinned: bool) -> bool:
        """Pin a record, or not."""
        return bool(self._call("pin", record, pinned))

    def pinned(self, record: int) -> bool:
        """Is it pinned?"""
        return bool(self._call("pinned", record))

    def seed(self, record: int, tokens: float) -> None:
        """What it counts for before any token chose it."""
        self._call("seed", record, tokens)

    def score(self, record: int) -> float:
        """What it counts for now."""
        return float(self._call("score", record))

    def tokens(self) -> list[int]:
        """Tokens that chose each record."""
        found = (c_int64 * max(self._records, 1))()
        self._call("tokens", found)
        return list(found[: self._records])

    def acquire(self, record: int, tokens: int = 1) -> tuple[Any, ...]:
        """Hold a record: the fields of `Placed`."""
        return self._answer(self._call("acquire", record, tokens, self._placed_at))

    def guess(self, record: int) -> tuple[Any, ...]:
        """Give a record that is foreseen a spare slot."""
        return self._answer(self._call("guess", record, self._placed_at))

    def has(self, record: int) -> bool:
        """Is it there, or on its way?"""
        return bool(self._call("has", record))

    def loaded(self, record: int) -> None:
        """It is filled."""
        self._call("loaded", record)

    def failed(self, record: int) -> None:
        """It cannot be filled."""
        self._call("failed", record)

    def release(self, record: int) -> None:
        """Undo one `acquire`."""
        self._call("release", record)

    def evict(self, record: int) -> bool:
        """Forget it."""
        return bool(self._call("evict", record))

    def slot(self, record: int) -> int:
        """Its slot, or -1."""
        return int(self._call("slot", record))

    def count(self) -> int:
        """Records that are there."""
        return int(self._call("count"))

    def free(self, pool: int) -> int:
        """Slots of a pool that no record has."""
        return int(self._call("free", pool))

    def used(self, pool: int) -> int:
        """Slots of a pool that a record has."""
        return int(self._call("used", pool))

    def resize(
        self, pool_slots: Sequence[int], pool_spares: Sequence[int] | None, domain_slots: Sequence[int] | None
    ) -> list[tuple[int, int, int]] | None:
        """Other numbers of slots; the moves, or None."""
        moves = (_Move * max(self._records, 1))()
        count = self._call("resize", numbers(pool_slots), _maybe(pool_spares), _maybe(domain_slots), moves)
        return None if count < 0 else [(move.record, move.origin, move.to) for move in moves[:count]]

    def _answer(self, answer: int) -> tuple[Any, ...]:
        placed = self._placed
        return answer, placed.slot, placed.victim, placed.displaced, bool(placed.foreseen), bool(placed.guest)


class _AutoSpec(ctypes.Structure):
    _fields_ = (
        ("layer_records", Ids),
        ("layer_slots", Ids),
        ("layers", c_int64),
        ("spares", c_int64),
        ("chosen", c_int64),
        ("growth", c_double),
    )


class NativeAuto(Owner):
    """`ktitan.tiers.reference.Auto` in C++; `spec` is its `AutoSpec`."""

    def __init__(self, spec: Any) -> None:
        sizes = numbers(spec.layer_records), numbers(spec.layer_slots), len(spec.layer_slots)
        struct = _AutoSpec(*sizes, spec.spares, spec.chosen, spec.growth)
        super().__init__("auto", library().kt_auto_create(ctypes.byref(struct)))

    def step(self, tokens: int) -> None:
        """The model takes a step."""
        self._call("step", tokens)

    def sequence(self) -> None:
        """A sequence begins."""
        self._call("sequence")

    def demand(self, layer: int, experts: Sequence[int], tokens: Sequence[int]) -> None:
        """The demands of a call."""
        self._call("demand", layer, numbers(experts), numbers(tokens), len(experts))

    def seed(self, layer: int, expert: int, tokens: float, pinned: bool) -> None:
        """What an expert counts for, and whether it is pinned."""
        self._call("seed", layer, expert, tokens, pinned)

    def resize(self, layer_slots: Sequence[int], spares: int) -> bool:
        """The slots have changed."""
        return bool(self._call("resize", numbers(layer_slots), spares))

    def policy(self) -> int:
        """The one that should decide."""
        return int(self._call("policy"))

    def rates(self) -> list[float]:
        """Measured hit rate of each policy."""
        found = np.zeros(POLICIES)
        self._call("rates", c_void_p(found.ctypes.data))
        return [float(rate) for rate in found]
