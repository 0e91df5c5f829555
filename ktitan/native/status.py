"""What the native library answers (enum kt_status of csrc/cpu/ktitan_cpu.h and csrc/program/ktitan_program.h)."""

from __future__ import annotations

from ktitan.errors import HardwareError, KtitanError, UnsupportedError

__all__ = ["raise_for"]

_OK, _NO_MEMORY = 0, 1
# Arguments that are checked before a call, except where only the library knows what fits.
_REFUSALS = {
    3: ("no kernel for that type or activation", "use a type of ktitan.native.matrix.GGML_TYPES"),
    4: ("sizes that do not fit each other", "give the sizes that the layer was declared with"),
    17: ("no such sequence in the KV pool", "use a sequence that has not been freed"),
    18: ("no such layer in the KV pool", "append its first tokens before it is read"),
}


def raise_for(status: int) -> None:
    """Nothing for a call that went well.

    Raises:
        HardwareError: there was no memory for temporaries, or the library and this package do not match.
        UnsupportedError: the library refused what it was given.
    """
    if status != _OK:
        raise _failure(status)


def _failure(status: int) -> KtitanError:
    if status == _NO_MEMORY:
        return HardwareError(
            "no memory for the temporaries of a CPU call", remedy="free memory, or give fewer tokens at a time"
        )
    if status in _REFUSALS:
        message, remedy = _REFUSALS[status]
        return UnsupportedError(message, "native library", remedy)
    return HardwareError(
        f"the native CPU library refused a call (status {status})", remedy="reinstall ktitan; its parts do not match"
    )
