"""A transformers cache over a KV pool: stock `generate` and ktitan's attention read and write the same pages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin

from ktitan.context import KVAllowance, KVPool, Phase, StepContext
from ktitan.engine.kv_torch import TorchKVPool
from ktitan.errors import KtitanError, UnsupportedError

__all__ = ["KtitanCache"]

# Layers that store keys and values and nothing else, and whether their mask has a window. A windowed layer keeps all
# of its tokens here: the mask hides the old ones, and a rollback of any length is exact.
_WINDOWED = {"full_attention": False, "sliding_attention": True, "chunked_attention": True}


class _Batch:
    """The rows of a batch as sequences of a pool, all of one length."""

    def __init__(self, pool: KVPool, sequences: tuple[int, ...] = ()) -> None:
        self.pool = pool
        self.sequences = sequences

    def length(self, layer: int) -> int:
        return self.pool.length(layer, self.sequences[0]) if self.sequences else 0

    def longest(self) -> int:
        return max((self.length(layer) for layer in self.pool.layers()), default=0)

    def open(self, rows: int) -> None:
        """Make sequences for a batch of `rows`, unless there are as many already."""
        if not self.sequences:
            self.sequences = tuple(self.pool.new_sequence() for _ in range(rows))
        elif len(self.sequences) != rows:
            raise UnsupportedError(
                f"a batch of {rows} rows does not fit a cache of {len(self.sequences)} rows",
                "KtitanCache",
                "reset the cache, or make one for each batch",
            )

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> int:
        """Store keys [B, Hk, T, Dk] and values [B, Hv, T, Dv]; the tokens that the layer held before.

        On refusal the layers before this one lose what they got of this step.
        """
        if keys.ndim != 4 or values.ndim != 4 or (keys.shape[0], keys.shape[2]) != (values.shape[0], values.shape[2]):
            raise UnsupportedError(
                f"keys {list(keys.shape)} and values {list(values.shape)} are not both [B, heads, T, dim]",
                f"layer {layer}",
                "give both for the same rows and tokens",
            )
        rows, tokens = keys.shape[0], keys.shape[2]
        self.open(rows)
        start = self.length(layer)
        try:
            self.pool.append_packed(layer, self.sequences, (tokens,) * rows, _pack(keys), _pack(values))
        except KtitanError:
            if self.longest() <= start + tokens:
                self.crop(start)
            raise
        return start

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store as `append` does, and give back all of the layer: keys [B, Hk, S, Dk] and values [B, Hv, S, Dv]."""
        start = self.append(layer, keys, values)
        return self.gather(layer) if start or not self.pool.is_exact else (keys, values)

    def gather(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [B, Hk, S, Dk] and values [B, Hv, S, Dv]."""
        keys, values = self.pool.gather_batch(layer, self.sequences)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens; an empty batch may have another number of rows next time."""
        if length == 0:
            self.release()
        for sequence in self.sequences:
            self.pool.crop(sequence, length)

    def select(self, rows: Sequence[int]) -> None:
        """Make row i what row `rows[i]` was. A row that is wanted again is forked: its pages are shared."""
        kept: list[int] = []
        for row in rows:
            sequence = self.sequences[row]
            kept.append(self.pool.fork(sequence) if sequence in kept else sequence)
        for sequence in set(self.sequences).difference(kept):
            self.pool.free(sequence)
        self.sequences = tuple(kept)

    def release(self) -> None:
        for sequence in self.sequences:
            self.pool.free(sequence)
        self.sequences = ()


class _PoolLayer(CacheLayerMixin):
    """What stock code may ask of one layer; rows are shared by all layers, so they change through the cache only."""

    is_croppable = True

    def __init__(self, batch: _Batch, index: int, is_sliding: bool) -> None:
        # The base class would assign `keys` and `values`, which are read from the pool here.
        self._batch = batch
        self._index = index
        self.is_sliding = is_sliding

    @property
    def is_initialized(self) -> bool:
        return self.get_seq_length() > 0

    @property
    def keys(self) -> torch.Tensor | None:  # type: ignore[override]
        return self._batch.gather(self._index)[0] if self.is_initialized else None

    @property
    def values(self) -> torch.Tensor | None:  # type: ignore[override]
        return self._batch.gather(self._index)[1] if self.is_initialized else None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Declare the layer and its rows from tensors of no tokens, [B, H, 0, D]."""
        self._batch.append(self._index, key_states, value_states)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._batch.update(self._index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self._batch.length(self._index)

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        raise self._refusal("reset")

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        raise self._refusal("reorder_cache")

    def offload(self) -> None:
        raise self._refusal("offload")

    def prefetch(self) -> None:
        raise self._refusal("prefetch")

    def _refusal(self, method: str) -> UnsupportedError:
        return UnsupportedError(
            f"{method} of a single layer is not possible: all layers share their rows' pages",
            remedy="call the method of the whole cache where it has one, or make a new cache",
        )


class KtitanCache(Cache):
    """The cache that `generate` and a model's forward take as `past_key_values` (from 5.24 on also as `cache`).

    Each batch row is one sequence of the pool, and all rows have the same length, as stock left padding has it. Beams
    share pages until they differ. Nothing is dropped outside a sliding window. Keys and values keep their dtype and
    device, so results are those of `DynamicCache`.

    A cache without `pool` owns a private one, which goes when the cache goes. In a shared pool the pages stay until
    `release` or `reset` is called. `copy.deepcopy` shares pages in a shared pool and copies a private one.

    Args:
        config: the model's configuration; only the types of its layers are read, to refuse at once what is not
            supported. Without it layers appear as they are used.
        pool: a pool that other caches use, too.
        budget_bytes: limit of the private pool, or who knows it (`model.ktitan.kv_allowance`); see `TorchKVPool`.
        make_pool: makes the private pool for a limit.

    Raises:
        UnsupportedError: the model has layers that keep more than keys and values (linear attention, indexers), or
            both `pool` and `budget_bytes` are given.
    """

    def __init__(
        self,
        config: PreTrainedConfig | None = None,
        pool: KVPool | None = None,
        budget_bytes: int | KVAllowance | None = None,
        make_pool: Callable[[int | KVAllowance | None], KVPool] = TorchKVPool,
    ) -> None:
        if pool is not None and budget_bytes is not None:
            raise UnsupportedError(
                "a shared pool has its own budget", "KtitanCache", "give budget_bytes to the pool, or no pool"
            )
        super().__init__(layers=[])
        self._is_shared = pool is not None
        self._batch = _Batch(make_pool(budget_bytes) if pool is None else pool)
        for is_sliding in [] if config is None else _windowed_layers(config):
            self._add_layer(is_sliding)

    def __deepcopy__(self, memo: dict[int, Any]) -> KtitanCache:
        clone = copy.copy(self)
        if self._is_shared:
            clone._batch = _Batch(self.pool, tuple(self.pool.fork(sequence) for sequence in self.sequences))
        else:
            clone._batch = copy.deepcopy(self._batch, memo)
        clone.layers = []
        for is_sliding in self.is_sliding:
            clone._add_layer(is_sliding)
        return clone

    def __repr__(self) -> str:
        return f"KtitanCache(rows={len(self.sequences)}, tokens={self._batch.longest()}, layers={len(self.layers)})"

    @property
    def pool(self) -> KVPool:
        """Where the pages lie."""
        return self._batch.pool

    @property
    def sequences(self) -> tuple[int, ...]:
        """The pool's sequence of each batch row; empty before the first tokens and after `reset`."""
        return self._batch.sequences

    def append(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int) -> None:
        """Store keys [B, Hk, T, Dk] and values [B, Hv, T, Dv] of a layer's next tokens without gathering the old ones.

        Raises:
            BudgetError: the pool is full; every layer is back at its length before the step.
            UnsupportedError: the shapes, the dtype or the device are not those of the layer.
        """
        self._layers_up_to(layer_idx)
        self._batch.append(layer_idx, key_states, value_states)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's next tokens as `append` does; all keys [B, Hk, S, Dk] and values [B, Hv, S, Dv].

        The result may be a view of the pages: it is valid until rows are next cropped, reordered or freed.

        Raises:
            BudgetError, UnsupportedError: as `append`.
        """
        self._layers_up_to(layer_idx)
        return self._batch.update(layer_idx, key_states, value_states)

    def step_context(self, tokens: int, batch_size: int = 1) -> StepContext:
        """The next step of `tokens` tokens in every row, packed row after row, with pages for them reserved.

        Positions are places in the cache: left padding counts. A cache without rows gets `batch_size` of them.

        Raises:
            BudgetError: the step does not fit in the pool; no page was taken.
        """
        self._batch.open(len(self.sequences) or batch_size)
        rows, start = len(self.sequences), self._batch.longest()
        self.pool.reserve(self.sequences, (tokens,) * rows)
        return StepContext(
            phase=Phase.DECODE if tokens == 1 else Phase.PREFILL,
            positions=torch.arange(start, start + tokens).repeat(rows),
            sequence_ids=torch.tensor(self.sequences).repeat_interleave(tokens),
            page_tables={sequence: self.pool.table(sequence) for sequence in self.sequences},
        )

    def reset(self) -> None:
        """Forget all tokens; the next batch may have another number of rows."""
        self._batch.release()

    def release(self) -> None:
        """Return all pages to the pool, as `reset` does: to be called when a cache in a shared pool is done."""
        self._batch.release()

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last -`tokens_to_remove` tokens of every row; a positive number is the length to keep.

        The positive form is that of transformers before 5.18, kept here for code that still uses it; 0 does nothing.
        """
        length = self._batch.longest()
        if tokens_to_remove > 0:
            self._batch.crop(min(tokens_to_remove, length))
        elif tokens_to_remove < 0:
            self._batch.crop(max(0, length + tokens_to_remove))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i becomes what row `beam_idx[i]` was (beam search)."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Put `repeats` rows in the place of each row; they share pages."""
        self._batch.select([row for row in range(len(self.sequences)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only the rows that `indices` (numbers or a mask) names, in its order."""
        if self.sequences:
            self._batch.select(torch.arange(len(self.sequences))[torch.as_tensor(indices).cpu()].tolist())

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: only the budget limits the length."""
        return -1

    @property
    def batch_size(self) -> int:
        """Rows of the batch; -1 before the first tokens, as stock caches have it."""
        return len(self.sequences) or -1

    @property
    def is_initialized(self) -> bool:
        """Whether there are tokens."""
        return self._batch.longest() > 0

    @property
    def is_compileable(self) -> bool:
        """False: tables of pages change in Python, which a compiled step would not see."""
        return False

    def _add_layer(self, is_sliding: bool) -> None:
        self.layers.append(_PoolLayer(self._batch, len(self.layers), is_sliding))

    def _layers_up_to(self, layer_idx: int) -> None:
        while len(self.layers) <= layer_idx:
            self._add_layer(is_sliding=False)


def _windowed_layers(config: PreTrainedConfig) -> list[bool]:
    """For each decoder layer of `config` whether its attention is windowed."""
    text = config.get_text_config(decoder=True)
    types = getattr(text, "layer_types", None)
    if types is None:
        has_window = getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None)
        types = ["sliding_attention" if has_window else "full_attention"] * text.num_hidden_layers
    unsupported = sorted(set(types) - set(_WINDOWED))
    if unsupported:
        raise UnsupportedError(
            f"layers of type {', '.join(unsupported)} keep more than keys and values",
            type(text).__name__,
            "leave the cache to generate, which makes a DynamicCache for this model",
        )
    return [_WINDOWED[kind] for kind in types]


def _pack(states: torch.Tensor) -> torch.Tensor:
    """[B, H, T, D] as the packed row [B * T, H, D]; a view where B or T is 1."""
    if states.shape[2] == 1:
        return states.squeeze(2)
    return states.transpose(1, 2).flatten(0, 1)
