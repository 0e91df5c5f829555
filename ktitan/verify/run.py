"""`verify_model`: the reference's pass, then the model's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ktitan.engine.scoring import score
from ktitan.errors import UnsupportedError
from ktitan.verify.models import STOCK, Candidate, by_ktitan, is_stock, living, stock
from ktitan.verify.report import VerifyReport
from ktitan.verify.spool import LogitSpool
from ktitan.verify.tally import Tally
from ktitan.verify.windows import Ids, check_windows, windows_of_ids, windows_of_text

__all__ = ["verify_model"]

# Logits of one chunk, at four bytes each, and the longest chunk whatever the vocabulary.
LOGIT_BYTES = 256 << 20
LONGEST_CHUNK = 512

Progress = Callable[[str, int, int], None]


def verify_model(
    model: str | Path | nn.Module,
    against: str | Path | nn.Module | None = None,
    *,
    ids: Ids | None = None,
    text: str | Path | None = None,
    window: int = 512,
    rows: int | None = None,
    tokenizer: Any = None,
    against_dtype: str = "float32",
    against_device: str | None = None,
    chunk_tokens: int | None = None,
    spool: str | Path | None = None,
    progress: Progress | None = None,
    **loading: Any,
) -> VerifyReport:
    """Score MODEL on windows of tokens, and how far it is from a reference; `ktitan.verify.tally` has the formulas.

    Every window stands alone; its positions 1 to the end are scored. The two models are never in memory together: the
    reference runs first and its logits go to a temporary file (tokens x vocabulary x 4 bytes for a float32 reference:
    134 MB for 4,096 tokens of 8,192 entries, 4.3 GB for 4,096 tokens of 262,144), whose room is checked first.

    Memory beside the loaded model: logits of one chunk, at most 256 MiB at four bytes each (`chunk_tokens` overrides),
    as much again for the reference's, 96 MiB of float64, 25 bytes a scored position, and the KV cache of a window that
    is longer than a chunk. Logits of a whole window are held only where it is one chunk.

    Args:
        model: MODEL (folder, `.gguf`, hub id, "demo"), or a model in memory.
        against: "stock": the folder of MODEL in stock transformers; a folder or hub id in HuggingFace's format: stock
            transformers too; any other MODEL: loaded by ktitan with "auto" rules; or a model in memory. None: no
            reference.
        ids: integer array [rows, tokens], or a .npy file of one. Either this or `text`.
        text: a UTF-8 file, cut into windows by the tokenizer of MODEL.
        window: tokens of a window of text.
        rows: only the first so many windows.
        tokenizer: for `text`, where the model is in memory.
        against_dtype: dtype of a stock reference.
        against_device: where the reference computes; None: where `device` says.
        chunk_tokens: tokens in one pass; None: up to 512, fewer with a large vocabulary.
        spool: folder of the temporary file; None: the system's (beware of one that is in memory).
        progress: called with (what is done, done, in all): "load ..." in bytes, "run ..." in tokens.
        loading: further keyword arguments of `ktitan.load` for MODEL: gguf_path, rules, budget, device, dtype, lora.

    Raises:
        KtitanError: as `ktitan.load`; ids, text or options that cannot be used (UnsupportedError, FormatError,
            WeightError); vocabularies of two sizes (UnsupportedError); no room for the file (BudgetError).
    """
    if (ids is None) == (text is None):
        raise UnsupportedError("give token ids or a text, one of the two", "verify", "use ids= or text=")
    for name, number in (("rows", rows), ("window", window), ("chunk_tokens", chunk_tokens)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise UnsupportedError(f"{number!r} is not a count", name, "give a whole number from 1 on")
    given = windows_of_ids(ids) if ids is not None else None
    longest = max(map(len, given[0])) if given is not None else window
    if not isinstance(model, nn.Module):
        loading.setdefault("context", longest)
    candidate = living(model, tokenizer) if isinstance(model, nn.Module) else by_ktitan(model, loading)
    windows, source = given if given is not None else windows_of_text(text or "", candidate.tokenizer(), window)
    windows = windows[:rows]
    check_windows(windows, candidate.vocabulary, source)
    size = chunk_tokens or max(1, min(LONGEST_CHUNK, LOGIT_BYTES // (4 * candidate.vocabulary)))
    tally = Tally()
    report = progress or (lambda what, done, total: None)
    run = _Run(windows, source, size, report)
    if against is None:
        run.model(candidate, None, tally)
    else:
        reference = _reference(model, against, against_dtype, against_device, loading)
        _check_vocabularies(candidate, reference)
        with closing(LogitSpool(None if spool is None else Path(spool), run.tokens)) as store:
            run.reference(reference, store)
            run.model(candidate, store, tally)
    name = None if against is None else _name(against)
    return VerifyReport.from_tally(tally, _name(model), name, source, len(windows))


def _name(model: str | Path | nn.Module) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else str(model)


def _reference(
    model: str | Path | nn.Module,
    against: str | Path | nn.Module,
    dtype: str,
    device: str | None,
    loading: dict[str, Any],
) -> Candidate:
    if isinstance(against, nn.Module):
        return living(against, None)
    device = device or loading.get("device")
    if str(against) == STOCK and not Path(against).exists():
        if isinstance(model, nn.Module):
            remedy = "name the folder of the stock model as the reference"
            raise UnsupportedError("a model in memory does not say where its stock form is", STOCK, remedy)
        return stock(model, device, dtype)
    if is_stock(against):
        return stock(against, device, dtype)
    kept = {name: loading[name] for name in ("budget", "context") if name in loading}
    return by_ktitan(against, {"device": device, **kept})


def _check_vocabularies(candidate: Candidate, reference: Candidate) -> None:
    if candidate.vocabulary != reference.vocabulary:
        raise UnsupportedError(
            f"{candidate.name} has a vocabulary of {candidate.vocabulary} entries, "
            f"the reference {reference.name} one of {reference.vocabulary}",
            "vocabulary",
            "compare models with the same tokenizer",
        )


class _Run:
    """The windows of one call, run through one model after the other."""

    def __init__(self, windows: list[torch.Tensor], source: str, chunk_tokens: int, progress: Progress) -> None:
        self.windows = windows
        self.source = source
        self.chunk_tokens = chunk_tokens
        self.progress = progress
        self.tokens = sum(len(row) - 1 for row in windows)

    def reference(self, candidate: Candidate, store: LogitSpool) -> None:
        """Write the logits of every scored position to `store`."""
        self._each(candidate, f"reference {candidate.name}", lambda logits, targets, where: store.write(logits))
        store.rewind()

    def model(self, candidate: Candidate, store: LogitSpool | None, tally: Tally) -> None:
        """Tally every scored position, against what `store` holds where there is one."""

        def take(logits: torch.Tensor, targets: torch.Tensor, where: str) -> None:
            expected = None if store is None else store.read(len(logits))
            if expected is not None and expected.shape != logits.shape:
                raise UnsupportedError(
                    f"the model gives {logits.shape[-1]} logits a position, the reference {expected.shape[-1]}",
                    where,
                    "compare models with the same tokenizer",
                )
            tally.add(logits, targets, expected, where)

        self._each(candidate, f"model {candidate.name}", take)

    def _each(self, candidate: Candidate, name: str, take: Callable[[torch.Tensor, torch.Tensor, str], None]) -> None:
        model = candidate.load(partial(self.progress, f"load {name}"))
        done = 0
        self.progress(f"run {name}", 0, self.tokens)
        for index, row in enumerate(self.windows):
            targets, start = row[1:], 0
            for logits in score(model, row[:-1], self.chunk_tokens):
                take(logits, targets[start : start + len(logits)], f"{self.source}: row {index}")
                start += len(logits)
                done += len(logits)
                self.progress(f"run {name}", done, self.tokens)
        # Gone before the other model is loaded; its modules and their handle hold each other.
        del model
        gc.collect()
