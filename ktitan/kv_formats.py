"""How keys and values are stored in the KV cache, by name."""

from __future__ import annotations

from dataclasses import dataclass

from ktitan.errors import UnsupportedError

__all__ = ["AS_COMPUTED", "KV_FORMATS", "KVFormat", "parse_kv"]


@dataclass(frozen=True)
class KVFormat:
    """Blocks of `block` numbers along a head, of `block_bytes` bytes each."""

    block: int
    block_bytes: int

    def row_bytes(self, width: int) -> int:
        """Bytes of one head's `width` numbers of a token, in whole blocks."""
        return -(-width // self.block) * self.block_bytes


# What a model computes, unchanged: float32, but for models that compute in another dtype.
AS_COMPUTED = "f32"
# In the order of enum kt_kv_format (csrc/program/ktitan_program.h); q8 is ggml's Q8_0: a scale in f16, then 32 bytes.
KV_FORMATS = {AS_COMPUTED: KVFormat(1, 4), "bf16": KVFormat(1, 2), "q8": KVFormat(32, 34)}


def parse_kv(value: str | None) -> str:
    """The name of a format; None is "f32".

    Raises:
        UnsupportedError: there is no such format.
    """
    name = value.strip().lower() if isinstance(value, str) else AS_COMPUTED if value is None else value
    if not isinstance(name, str) or name not in KV_FORMATS:
        raise UnsupportedError(f"{value!r} is no format of the KV cache", "kv", f"choose {', '.join(KV_FORMATS)}")
    return name
