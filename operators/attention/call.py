"""What one call hands to an attention: positions, mask and cache, in either version's words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ktitan.errors import UnsupportedError
from ktitan.operators.attention.rotary import Rotation

__all__ = ["AttentionCall"]


@dataclass(frozen=True)
class AttentionCall:
    """The inputs of one attention call besides the hidden states [B, T, H].

    Attributes:
        tokens: T.
        rotation: the stock class's rotary function.
        position_embeddings: what the model computed for it.
        mask: None, or a bool or additive mask that broadcasts to [B, H, T, S].
        cache: a transformers `Cache`, or None.
        layer: index of the layer in the cache.
        update_kwargs: extra arguments of `cache.update`.
        looks_back: without a mask, a token sees itself and earlier ones only.
        eager: write the formula out instead of using the fused kernel.
        path: dotted path of the module, for errors.
    """

    tokens: int
    rotation: Rotation
    position_embeddings: Any
    mask: torch.Tensor | None
    cache: Any
    layer: int
    update_kwargs: dict[str, Any] = field(default_factory=dict)
    looks_back: bool = True
    eager: bool = False
    path: str = ""

    @property
    def is_causal(self) -> bool:
        """Whether a missing mask stands for "look back only": not for one token, which sees all there is."""
        return self.mask is None and self.looks_back and self.tokens > 1

    def rotate(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """query [B, H, T, D] and key [B, Hk, T, D], turned by their positions."""
        return self.rotation(query, key, self.position_embeddings)

    def remember(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append key and value [B, Hk, T, D] to the cache; returns all S tokens that may be looked at.

        A static cache returns all its room. Where the missing mask means "look back only", it was empty before, and
        what lies beyond the T new tokens is cut off.

        Raises:
            UnsupportedError: several tokens came without a mask onto a cache that holds earlier ones.
        """
        if self.cache is None:
            return key, value
        key, value = self.cache.update(key, value, self.layer, **self.update_kwargs)
        if not self.is_causal or key.shape[2] == self.tokens:
            return key, value
        if int(self.cache.get_seq_length(self.layer)) != self.tokens:
            message = f"{self.tokens} tokens follow earlier ones in the cache, and no mask says what they see"
            raise UnsupportedError(message, self.path, "pass attention_mask [B, 1, T, S]")
        return key[:, :, : self.tokens], value[:, :, : self.tokens]

    def written_mask(self, device: torch.device) -> torch.Tensor | None:
        """The mask for code that has no notion of "look back only": [T, T] bool where that is meant."""
        if not self.is_causal:
            return self.mask
        return torch.ones(self.tokens, self.tokens, dtype=torch.bool, device=device).tril()
