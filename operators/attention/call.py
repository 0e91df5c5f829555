"""What one call hands to an attention: positions, mask and cache, in either version's words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ktitan.errors import UnsupportedError
from ktitan.operators.attention.rotary import Rotation
from ktitan.operators.attention.softmax import causal_mask

__all__ = ["AttentionCall"]


@dataclass(frozen=True)
class AttentionCall:
    """The inputs of one attention call besides the hidden states.

    Attributes:
        rotation: the stock class's rotary function.
        position_embeddings: what the model computed for it.
        mask: None, or a bool or additive mask that broadcasts to [B, H, T, S].
        cache: a transformers `Cache`, or None.
        layer: index of the layer in the cache.
        update_kwargs: extra arguments of `cache.update` (5.24 hands its call's kwargs on, 5.17 nothing).
        is_causal: without a mask, tokens look back only.
        eager: write the formula out instead of using the fused kernel.
        path: dotted path of the module, for errors.
    """

    rotation: Rotation
    position_embeddings: Any
    mask: torch.Tensor | None
    cache: Any
    layer: int
    update_kwargs: dict[str, Any] = field(default_factory=dict)
    is_causal: bool = True
    eager: bool = False
    path: str = ""

    def rotate(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """query [B, H, T, D] and key [B, Hk, T, D], turned by their positions."""
        return self.rotation(query, key, self.position_embeddings)

    def remember(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the T new tokens to the cache; all S tokens that it returns for this layer."""
        if self.cache is None:
            return key, value
        return self.cache.update(key, value, self.layer, **self.update_kwargs)

    def visible(
        self, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, bool]:
        """Keys, values, mask, and whether to look back only: transformers' own reading of a missing mask.

        One token looks at all there is. Several tokens look back among themselves; a static cache that was empty holds
        more rows than tokens then, of which the rest is cut off.

        Raises:
            UnsupportedError: several tokens came without a mask onto a cache that holds earlier ones.
        """
        tokens = self.position_tokens
        is_causal = self.is_causal and self.mask is None and tokens > 1
        if not is_causal or key.shape[2] == tokens:
            return key, value, self.mask, is_causal
        if int(self.cache.get_seq_length(self.layer)) != tokens:
            message = f"{tokens} tokens follow earlier ones in the cache, and no attention mask says what they see"
            raise UnsupportedError(message, self.path, "pass attention_mask [B, 1, T, S]")
        return key[:, :, :tokens], value[:, :, :tokens], None, True
