"""What travels with a step: its positions and sequences, and the contract of the KV pool.

Shape letters: T tokens of the step, S tokens of a sequence so far, H heads, D head dim, P pages.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

import torch

from ktitan.kv_formats import AS_COMPUTED, KV_FORMATS

__all__ = [
    "PAGE_TOKENS",
    "KVAllowance",
    "KVLayerSpec",
    "KVPool",
    "Keeper",
    "PagedCache",
    "Phase",
    "StepContext",
    "current_step",
    "step",
]

PAGE_TOKENS = 64


class Phase(Enum):
    """Whether a step reads a prompt (many tokens a sequence) or makes one token a sequence."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True)
class StepContext:
    """One step of one packed batch: the tokens of all sequences lie in one row.

    Attributes:
        phase: prefill or decode.
        positions: [T] int64, position of each token in its sequence.
        sequence_ids: [T] int64, which sequence of the pool each token belongs to.
        page_tables: per sequence id, the pool pages that hold its tokens, in order (one table for all layers).
    """

    phase: Phase
    positions: torch.Tensor
    sequence_ids: torch.Tensor
    page_tables: dict[int, tuple[int, ...]]

    @property
    def tokens(self) -> int:
        """T, the tokens in this step."""
        return int(self.positions.shape[0])


_current: ContextVar[StepContext | None] = ContextVar("ktitan_step", default=None)


def current_step() -> StepContext | None:
    """The step that is running, or None when stock code called the model without one."""
    return _current.get()


@contextmanager
def step(context: StepContext) -> Iterator[StepContext]:
    """Make `context` the current step while the block runs."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


@dataclass(frozen=True)
class KVLayerSpec:
    """What one layer stores per token: keys [key_heads, key_dim], values [value_heads, value_dim].

    For multi-head latent attention the key is the latent [1, kv_lora_rank] and the value the rotary part [1, rope_dim].

    Attributes:
        dtype: what is appended and gathered.
        format: how pages hold it, of `ktitan.kv_formats`; "f32" is as `dtype` has it.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    format: str = AS_COMPUTED

    @classmethod
    def of(cls, keys: torch.Tensor, values: torch.Tensor) -> KVLayerSpec:
        """That of a layer whose tokens are keys [T, Hk, Dk] and values [T, Hv, Dv]."""
        (_, key_heads, key_dim), (_, value_heads, value_dim) = keys.shape, values.shape
        return cls(key_heads, key_dim, value_heads, value_dim, keys.dtype, keys.device)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in this layer."""
        if self.format == AS_COMPUTED:
            return (self.key_heads * self.key_dim + self.value_heads * self.value_dim) * self.dtype.itemsize
        stored = KV_FORMATS[self.format]
        return self.key_heads * stored.row_bytes(self.key_dim) + self.value_heads * stored.row_bytes(self.value_dim)


class KVPool(ABC):
    """Pages of 64 tokens, shared by all sequences, counted by reference, copied on write.

    A page is aligned to position 0 of its sequence: page i holds positions 64 i to 64 i + 63. Layers are declared when
    their first tokens arrive. A sequence's table of pages is the same in every layer, so a fork shares all layers.
    """

    page_tokens: int = PAGE_TOKENS

    @abstractmethod
    def new_sequence(self) -> int:
        """The id of a new, empty sequence."""

    @abstractmethod
    def fork(self, sequence: int) -> int:
        """The id of a new sequence that shares all pages of `sequence`; either one copies a page before writing it."""

    @abstractmethod
    def free(self, sequence: int) -> None:
        """Forget a sequence; pages that nobody else uses return to the pool."""

    @abstractmethod
    def reserve(self, sequences: Sequence[int], tokens: Sequence[int]) -> None:
        """Get own pages for the next `tokens[i]` tokens of `sequences[i]`, so that no append can be refused.

        All or nothing. Call it before a step to learn of a full pool before any layer has run.

        Raises:
            BudgetError: the pages would pass the pool's byte budget; nothing was changed.
        """

    @abstractmethod
    def append_packed(
        self, layer: int, sequences: Sequence[int], tokens: Sequence[int], keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write the next tokens of one layer for several sequences, packed in one row, `tokens[i]` for `sequences[i]`.

        Args:
            layer: number of the layer; its first append declares what it stores.
            sequences: distinct ids.
            tokens: how many tokens each sequence gets; their sum is T.
            keys: [T, Hk, Dk].
            values: [T, Hv, Dv].

        Raises:
            BudgetError: new pages would pass the pool's byte budget; nothing was written for any sequence.
            UnsupportedError: shapes, dtype or device are not those of the layer, or a sequence is unknown.
        """

    def append(self, layer: int, sequence: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the next T tokens of one layer of one sequence: keys [T, Hk, Dk], values [T, Hv, Dv].

        Raises:
            BudgetError: a new page would pass the pool's byte budget; nothing was written.
            UnsupportedError: shapes, dtype or device are not those of the layer, or the sequence is unknown.
        """
        self.append_packed(layer, (sequence,), (int(keys.shape[0]),), keys, values)

    @abstractmethod
    def gather_batch(self, layer: int, sequences: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """All tokens of one layer of B sequences of equal length: keys [B, S, Hk, Dk], values [B, S, Hv, Dv].

        The result may be a view of the pages: read it before the next append, crop or free.

        Raises:
            UnsupportedError: the sequences differ in length, or the layer has not been declared.
        """

    def gather(self, layer: int, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All tokens of one layer of one sequence in order, as in `gather_batch`: keys [S, Hk, Dk], values [S, Hv, Dv].

        Raises:
            UnsupportedError: the layer has not been declared.
        """
        keys, values = self.gather_batch(layer, (sequence,))
        return keys[0], values[0]

    @abstractmethod
    def pages(self, layer: int, sequence: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The pages of one layer in order, each keys [n, Hk, Dk] and values [n, Hv, Dv] with n <= 64 (views)."""

    @abstractmethod
    def length(self, layer: int, sequence: int) -> int:
        """S, the tokens that one layer holds of one sequence."""

    @abstractmethod
    def crop(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens in every layer; pages that become empty return to the pool."""

    @abstractmethod
    def table(self, sequence: int) -> tuple[int, ...]:
        """The page numbers of one sequence, in order."""

    @abstractmethod
    def layers(self) -> Sequence[int]:
        """The layers that have been declared, ascending."""

    @abstractmethod
    def spec(self, layer: int) -> KVLayerSpec:
        """What a declared layer stores.

        Raises:
            UnsupportedError: the layer has not been declared.
        """

    @property
    def is_exact(self) -> bool:
        """Whether what is gathered is what was appended, bit for bit; else it is rounded to the pages' format."""
        return True

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """Bytes of the pages in use, over all layers."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Bytes that the pool cannot give back while its sequences are there."""


class Keeper(Protocol):
    """Who keeps keys and values in the hope that they are wanted again."""

    def clear(self) -> None:
        """Give the pages back."""


class KVAllowance:
    """Bytes that each of a model's KV pools may take.

    Who owns the budget changes it while pools live: they ask when they grow, and at their next step give back what they
    may not keep.

    Attributes:
        limit_bytes: None: no limit.
        lock: held while a pool gets pages, and while the limit changes.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.lock = threading.RLock()
        self._pools: WeakSet[KVPool] = WeakSet()
        self._keepers: WeakSet[Keeper] = WeakSet()

    def enter(self, pool: KVPool) -> None:
        """Count a pool in for as long as it lives."""
        with self.lock:
            self._pools.add(pool)

    def keep(self, keeper: Keeper) -> None:
        """Know of somebody who keeps keys and values that are not in use, for as long as it lives."""
        with self.lock:
            self._keepers.add(keeper)

    def reclaim(self) -> None:
        """Have all that is kept and not in use given back; to be called without the lock."""
        with self.lock:
            keepers = list(self._keepers)
        for keeper in keepers:
            keeper.clear()

    @property
    def held_bytes(self) -> int:
        """Bytes that all pools hold and cannot give back."""
        with self.lock:
            return sum(pool.held_bytes for pool in self._pools)

    def __deepcopy__(self, memo: dict[int, Any]) -> KVAllowance:
        return self  # a copied cache is of the same model

    def __reduce__(self) -> Any:
        return KVAllowance, (self.limit_bytes,)


@runtime_checkable
class PagedCache(Protocol):
    """A transformers cache whose rows are sequences of a pool: what ktitan's attention asks of its `cache` argument."""

    @property
    def pool(self) -> KVPool:
        """Where the pages lie."""

    @property
    def sequences(self) -> tuple[int, ...]:
        """The pool's sequence of each batch row; empty before the first tokens."""

    def append(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int) -> None:
        """Store keys [B, Hk, T, Dk] and values [B, Hv, T, Dv] of a layer's next tokens without gathering the old ones.

        Raises:
            BudgetError: the pool is full; every layer is back at its length before the step.
        """
