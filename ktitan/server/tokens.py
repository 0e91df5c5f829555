"""The bytes behind a token, for clients that want log probabilities."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["TokenBytes"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_table() -> dict[str, int]:
    """Byte-level BPE's printable character for each byte (GPT-2's `bytes_to_unicode`), inverted."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


class TokenBytes:
    """Looks up tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {index: str(token) for index, token in tokenizer.added_tokens_decoder.items()}
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        self._table = _byte_level_table() if "ByteLevel" in str(decoder) else None

    def bytes_of(self, token_id: int) -> bytes:
        """What the token adds to the text; a part of a character may be all of it."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if not isinstance(token, str):
            return b""
        if match := _BYTE.fullmatch(token):
            return bytes([int(match[1], 16)])
        if self._table is not None and all(character in self._table for character in token):
            return bytes(self._table[character] for character in token)
        return token.replace("▁", " ").encode()

    def text_of(self, token_id: int) -> str:
        """The same as text; bytes that are no text are spelled out, as OpenAI does."""
        raw = self.bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
