"""Makes the program of a model and compares it with the model itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ktitan.context import step
from ktitan.errors import KtitanError, UnsupportedError
from ktitan.native import native_reason
from ktitan.program.model import draft_model
from ktitan.program.run import StepProgram
from ktitan.program.trace import cache_options
from ktitan.program.windows import window_reason
from ktitan.shells import PROBE_FAULTS

__all__ = ["NoProgram", "build_program", "check_program"]

_PROMPT_TOKENS = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NoProgram:
    """A model runs as modules.

    Attributes:
        reason: why, as a clause.
    """

    reason: str


def build_program(model: Any, new_cache: Callable[[], Any], check: bool = True) -> StepProgram | NoProgram:
    """The step program of an injected model.

    Args:
        model: injected and loaded.
        new_cache: makes an empty cache for one sequence.
        check: run random tokens both ways; logits must be bit-equal.

    Returns:
        The program, or why there is none.
    """
    reason = _model_reason(model) or _cache_reason(new_cache())
    if reason is not None:
        return NoProgram(reason)
    try:
        drafted = draft_model(model, new_cache())
        if not drafted.builder.lowered:
            return NoProgram("none of its modules has a form in a program")
        reason = window_reason(drafted.draft, drafted.trace, new_cache())
        if reason is not None:
            return NoProgram(reason)
        program = StepProgram(drafted)
        if check:
            check_program(program, model, new_cache)
    except KtitanError as error:
        return NoProgram(f"{error.where}: {error.message}" if error.where else error.message)
    except PROBE_FAULTS as error:  # of somebody's forward or lower; the modules may work all the same
        return NoProgram(f"{type(error).__name__}: {error}")
    logger.info("a program of %d operations runs steps", len(program.native.operations))
    return program


def check_program(program: StepProgram, model: Any, new_cache: Callable[[], Any]) -> None:
    """Run a short prompt and one token both ways, on caches of their own.

    Raises:
        UnsupportedError: logits differ in a bit, or one way fails where the other does not.
    """
    ids = torch.randint(
        model.config.get_text_config(decoder=True).vocab_size, (_PROMPT_TOKENS + 1,), generator=_random()
    )
    caches = new_cache(), new_cache()
    try:
        for first, end in ((0, _PROMPT_TOKENS), (_PROMPT_TOKENS, _PROMPT_TOKENS + 1)):
            try:
                expected = _module_logits(model, ids[first:end], first, caches[0])
                found = program.run(ids[first:end], caches[1])
            except PROBE_FAULTS as error:
                message = f"it cannot be run both ways: {error}"
                raise UnsupportedError(message, type(model).__name__, "run it as modules") from error
            if not torch.equal(expected, found):
                where = "a prompt" if first == 0 else "a token"
                difference = float((expected - found).abs().max())
                raise UnsupportedError(
                    f"its logits differ from those of the modules after {where}, by up to {difference:.1e}",
                    type(model).__name__,
                    "run it as modules",
                )
    finally:
        for cache in caches:
            cache.release()


@torch.inference_mode()
def _module_logits(model: Any, ids: torch.Tensor, first: int, cache: Any) -> torch.Tensor:
    with step(cache.step_context(len(ids))):
        logits: torch.Tensor = model(input_ids=ids[None], **cache_options(model, first, len(ids), cache)).logits
    return logits[:, -1, :].float()


def _random() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def _model_reason(model: Any) -> str | None:
    reason = native_reason()
    if reason is not None:
        return f"the native library is {reason}"
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    elsewhere = next((tensor for tensor in tensors if tensor.device.type != "cpu"), None)
    if elsewhere is not None:
        return f"a part of it is on {elsewhere.device}"
    other = next((tensor.dtype for tensor in tensors if tensor.dtype is not torch.float32), None)
    if other is not None:
        return f"programs compute in float32, a part of the model is {str(other).removeprefix('torch.')}"
    return None if isinstance(model, PreTrainedModel) else "it is no model of transformers"


def _cache_reason(cache: Any) -> str | None:
    native = getattr(getattr(cache, "pool", None), "native", None)
    return None if native is not None else f"its cache is a {type(cache).__name__} without native pages"
