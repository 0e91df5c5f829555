"""The two models of a comparison, each loaded only when its turn comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from ktitan.api import load
from ktitan.api.build import DTYPES, build_tokenizer
from ktitan.api.locate import locate
from ktitan.api.planning import Prepared, plan_injection, prepare
from ktitan.errors import BudgetError, UnsupportedError, WeightError
from ktitan.tiers import format_bytes

__all__ = ["STOCK", "Candidate", "by_ktitan", "is_stock", "living", "stock"]

STOCK = "stock"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Candidate:
    """A model that can be loaded.

    Attributes:
        name: for messages.
        vocabulary: width of its logits.
        load: reads the weights; called with a progress callback of (bytes read, bytes in all).
        tokenizer: makes its tokenizer.
    """

    name: str
    vocabulary: int
    load: Callable[[Progress | None], Any]
    tokenizer: Callable[[], Any]


def living(model: nn.Module, tokenizer: Any) -> Candidate:
    """A model that is in memory already."""

    def given() -> Any:
        if tokenizer is None:
            raise UnsupportedError("a text needs a tokenizer", "text", "pass tokenizer=, or give ids")
        return tokenizer

    return Candidate(type(model).__name__, _vocabulary(model), lambda _: model, given)


def by_ktitan(name: str | Path, loading: dict[str, Any]) -> Candidate:
    """MODEL loaded by `ktitan.load`; its plan is checked here, before anything runs for hours.

    Args:
        name: MODEL.
        loading: keyword arguments of `ktitan.api.load`.

    Raises:
        RuleError, PlanError, WeightError, BudgetError, HardwareError, UnsupportedError, FormatError: as loading would.
    """
    ready = prepare(name, loading.get("gguf_path"), device=loading.get("device"), dtype=loading.get("dtype"))
    plan_injection(
        ready.model,
        loading.get("rules", "auto"),
        ready.sources,
        budget=loading.get("budget"),
        device=ready.device,
        hardware=ready.hardware,
        context=loading.get("context"),
    ).check()
    return Candidate(
        str(name),
        _vocabulary(ready.model),
        lambda progress: load(name, progress=progress, **loading)[0],
        lambda: build_tokenizer(ready.files, ready.sources),
    )


def is_stock(name: str | Path) -> bool:
    """Whether a reference of this name is loaded by transformers itself: a folder or hub id with a config.json."""
    return locate(name, download_weights=False).home is not None


def stock(name: str | Path, device: str | None, dtype: str) -> Candidate:
    """The unchanged model of transformers from an HF folder or hub id, with transformers' own loader.

    Args:
        name: what it is called, a folder or hub id.
        device: where it computes; None: the first GPU, else the CPU.
        dtype: "float32", "bfloat16" or "float16".

    Raises:
        WeightError: no folder with config.json and safetensors.
        BudgetError: its weights do not fit.
        UnsupportedError: transformers has no such model, or another dtype.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}", "dtype", "use float32")
    ready = prepare(name, device=device, dtype=dtype)
    if ready.files.home is None:
        remedy = "give the folder of the original model as the reference, or another MODEL"
        raise WeightError("there is no stock model beside a GGUF", str(name), remedy)
    _check_room(ready, str(name))
    return Candidate(
        str(name),
        _vocabulary(ready.model),
        lambda _: _load_stock(ready, DTYPES[dtype]),
        lambda: build_tokenizer(ready.files, ready.sources),
    )


def _vocabulary(model: Any) -> int:
    return int(model.config.get_text_config(decoder=True).vocab_size)


def _check_room(ready: Prepared, name: str) -> None:
    needed = sum(tensor.numel() * tensor.element_size() for tensor in ready.model.parameters())
    place = torch.device(ready.device)
    free = ready.hardware.memory.available_bytes
    if place.type == "cuda":
        free = next((gpu.free_bytes for gpu in ready.hardware.gpus if gpu.index == (place.index or 0)), needed)
    if needed > free:
        raise BudgetError(
            f"the stock model takes {format_bytes(needed)} on {place}, {format_bytes(free)} are free",
            name,
            "compare with a smaller file that ktitan loads (a Q8_0 GGUF), or choose another dtype or device for it",
        )


def _load_stock(ready: Prepared, dtype: torch.dtype) -> Any:
    loader: Any = AutoModelForCausalLM
    try:
        model, info = loader.from_pretrained(
            ready.files.home, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise WeightError(f"transformers does not load it: {error}", str(ready.files.home), "check the files") from error
    unfilled = [*info["missing_keys"], *info["mismatched_keys"]]
    if unfilled:
        # transformers would go on with random numbers in their place.
        raise WeightError(
            f"transformers fills {len(unfilled)} tensors from no file: {', '.join(map(str, sorted(unfilled)[:3]))}",
            str(ready.files.home),
            "use a complete checkpoint",
        )
    return model.to(ready.device).eval()
