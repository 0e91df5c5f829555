"""The two models of a comparison, each loaded only when its turn comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from ktitan.api.build import DTYPES, build_tokenizer
from ktitan.api.checksums import check_weights
from ktitan.api.loading import carry_out
from ktitan.api.locate import locate
from ktitan.api.planning import Prepared, RulesArgument, plan_injection, prepare
from ktitan.errors import BudgetError, UnsupportedError, WeightError
from ktitan.tiers import Budget, format_bytes

__all__ = ["STOCK", "Candidate", "Loading", "by_ktitan", "find_reference", "living"]

STOCK = "stock"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Loading:
    """How ktitan loads a model; see `ktitan.load`."""

    gguf_path: str | Path | Sequence[str | Path] | None = None
    rules: RulesArgument = "auto"
    budget: str | Budget | None = None
    device: str | None = None
    dtype: str | torch.dtype | None = None
    lora: str | Path | None = None
    context: int | None = None
    verify_weights: bool = False


@dataclass(frozen=True)
class Candidate:
    """A model that can be loaded.

    Attributes:
        name: for messages.
        vocabulary: width of its logits.
        load: reads the weights, once; called with a progress callback of (bytes read, bytes in all). Nothing here holds
            the model afterwards.
        tokenizer: makes its tokenizer.
    """

    name: str
    vocabulary: int
    load: Callable[[Progress], Any]
    tokenizer: Callable[[], Any]


def living(model: nn.Module, tokenizer: Any) -> Candidate:
    """A model that is in memory already."""

    def given() -> Any:
        if tokenizer is None:
            raise UnsupportedError("a text needs a tokenizer", "text", "pass tokenizer=, or give ids")
        return tokenizer

    return Candidate(type(model).__name__, _vocabulary(model), lambda _: model, given)


def by_ktitan(name: str | Path, how: Loading) -> Candidate:
    """MODEL as `ktitan.load` makes it, without need of a tokenizer. Its plan is checked here, before a long run.

    Raises:
        KtitanError: as `ktitan.load`, all but what reading the weights may find.
    """
    ready = prepare(name, how.gguf_path, device=how.device, dtype=how.dtype)
    plan = plan_injection(
        ready.model,
        how.rules,
        ready.sources,
        budget=how.budget,
        device=ready.device,
        hardware=ready.hardware,
        context=how.context,
        lora=how.lora,
    )
    plan.check()
    files, sources, once = ready.files, ready.sources, [(ready.model, plan)]

    def read(progress: Progress) -> Any:
        model, plan = once.pop()
        if how.verify_weights:
            check_weights(sources, progress)
        carry_out(model, plan, progress=progress)
        return model

    return Candidate(str(name), _vocabulary(ready.model), read, lambda: build_tokenizer(files, sources))


def find_reference(
    model: str | Path | nn.Module, against: str | Path | nn.Module, dtype: str, how: Loading
) -> Candidate:
    """What `against` names: a model in memory, "stock", what is in HuggingFace's format (stock, too), or another MODEL.

    Raises:
        KtitanError: as `ktitan.load` and `_stock`.
    """
    if isinstance(against, nn.Module):
        return living(against, None)
    if str(against) == STOCK and not Path(against).exists():
        if isinstance(model, nn.Module):
            remedy = "name the folder of the stock model as the reference"
            raise UnsupportedError("a model in memory does not say where its stock form is", STOCK, remedy)
        return _stock(model, how.device, dtype)
    files = locate(against, download_weights=False)
    if files.home is not None and not files.is_native:
        return _stock(against, how.device, dtype)
    return by_ktitan(against, how)


def _stock(name: str | Path, device: str | None, dtype: str) -> Candidate:
    """The unchanged model of transformers from an HF folder or hub id, with transformers' own loader.

    Raises:
        WeightError: no folder with config.json and safetensors.
        BudgetError: its weights do not fit.
        UnsupportedError: transformers has no such model, or another dtype.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}", "against_dtype", "use float32")
    ready = prepare(name, device=device, dtype=dtype)
    if ready.files.home is None:
        remedy = "give the folder of the original model as the reference, or another MODEL"
        raise WeightError("there is no stock model beside a GGUF", str(name), remedy)
    _check_room(ready, str(name))
    home, place = ready.files.home, ready.device
    return Candidate(
        str(name), _vocabulary(ready.model), lambda _: _load_stock(home, place, DTYPES[dtype]), lambda: None
    )


def _vocabulary(model: Any) -> int:
    return int(model.config.get_text_config(decoder=True).vocab_size)


def _check_room(ready: Prepared, name: str) -> None:
    needed = sum(tensor.numel() * tensor.element_size() for tensor in ready.model.parameters())
    place = torch.device(ready.device)
    free = ready.hardware.memory.available_bytes or needed
    if place.type == "cuda":
        free = next((gpu.free_bytes for gpu in ready.hardware.gpus if gpu.index == (place.index or 0)), needed)
    if needed > free:
        raise BudgetError(
            f"the stock model takes {format_bytes(needed)} on {place}, {format_bytes(free)} are free",
            name,
            "compare with a smaller file that ktitan loads (a Q8_0 GGUF), or choose another dtype or device for it",
        )


def _load_stock(home: Path, device: str, dtype: torch.dtype) -> Any:
    loader: Any = AutoModelForCausalLM
    try:
        model, info = loader.from_pretrained(
            home, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise WeightError(f"transformers does not load it: {error}", str(home), "check the files") from error
    unfilled = [*info["missing_keys"], *info["mismatched_keys"]]
    if unfilled:
        # transformers would go on with random numbers in their place.
        raise WeightError(
            f"no file fills {len(unfilled)} of its tensors: {', '.join(sorted(map(str, unfilled))[:3])}",
            str(home),
            "use a complete checkpoint",
        )
    return model.to(device).eval()
