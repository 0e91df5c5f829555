"""The bar of a download: bytes, rate and time left, on a terminal only."""

from __future__ import annotations

from typing import Any

from huggingface_hub.utils import tqdm

__all__ = ["bar_class"]

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}B of {total_fmt}B, {rate_fmt}, {remaining} left"
_TRANSFER = ".transfer"


def bar_class(title: str, total_bytes: int) -> type[tqdm]:
    """A class for `snapshot_download(tqdm_class=...)`, which makes several bars of it and adds files up as they start.

    Only the bar of bytes is shown, against the `total_bytes` that are known beforehand; else its time left would be
    that of the files under way. huggingface_hub hides it where stderr is no terminal, or where the user says so.
    """

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("unit") != "B" or str(kwargs.get("name", "")).endswith(_TRANSFER):
                kwargs["disable"] = True
            kwargs["bar_format"] = _FORMAT
            super().__init__(*args, **kwargs)
            super().set_description(title, refresh=False)

        @property
        def total(self) -> int:
            return total_bytes

        @total.setter
        def total(self, value: object) -> None:
            """What huggingface_hub adds up is not needed."""

        def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
            """Keep the title."""

    return Bar
