"""Whether the attentions of a program look as far back as the stock model's masks let them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from ktitan.native.program import Operation
from ktitan.program.draft import Draft
from ktitan.program.trace import ModelTrace
from ktitan.program.traced import arguments_of
from ktitan.shells import PROBE_FAULTS

__all__ = ["window_reason"]

_LEAST_TOKENS = 300


def window_reason(draft: Draft, trace: ModelTrace, cache: Any) -> str | None:
    """Why a program sees other tokens than the model, or None.

    The model's forward makes its masks for one token behind a long sequence; nothing is computed.

    Args:
        draft: the program.
        trace: the model's forward on stand-ins.
        cache: an empty one.
    """
    attends = [item for item in draft.items if isinstance(item, Operation) and item.kind == "attend"]
    windows: dict[int, int] = {item.numbers[0]: item.what.window for item in attends}
    config = trace.model.config.get_text_config(decoder=True)
    named = [getattr(config, name, None) or 0 for name in ("sliding_window", "attention_chunk_size")]
    tokens = max(_LEAST_TOKENS, 2 * max([*windows.values(), *named], default=0) + 3)
    try:
        calls, _ = trace.run(torch.zeros(1, dtype=torch.int64), tokens, _pretending(cache, tokens))
    except PROBE_FAULTS as error:
        return f"its masks for a long sequence could not be made: {error}"
    for number, called in trace.layer_calls(calls).items():
        mask = arguments_of(called.module, called.args, called.kwargs).get("attention_mask")
        if number in windows and not torch.equal(_seen(mask, tokens + 1), _expected(windows[number], tokens + 1)):
            return f"the model's mask of layer {number} is not that of a window of {windows[number]} (0: none)"
    return None


def _seen(mask: Any, keys: int) -> torch.Tensor:
    """Which keys the last token sees, [keys] bool."""
    if mask is None:
        return torch.ones(keys, dtype=torch.bool)
    row = mask[0, 0, -1]
    seen: torch.Tensor = row if row.dtype is torch.bool else row > torch.finfo(row.dtype).min / 2
    return seen


def _expected(window: int, keys: int) -> torch.Tensor:
    return torch.arange(keys) >= (keys - window if window else 0)


class _PretendedLayer(CacheLayerMixin):
    """What masks ask of a cache's layer, which says that it holds tokens."""

    def __init__(self, tokens: int, is_sliding: bool) -> None:
        super().__init__()
        self._tokens = tokens
        self.is_sliding = is_sliding
        self.is_initialized = True

    def get_seq_length(self) -> int:
        return self._tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._tokens + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise TypeError("there are no keys")

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("there are no keys")


def _pretending(cache: Any, tokens: int) -> Any:
    """A cache like an empty one that says it holds so many tokens."""
    twin = copy.copy(cache)
    twin.layers = [_PretendedLayer(tokens, is_sliding) for is_sliding in cache.is_sliding]
    return twin
