"""`verify_model`: the reference's pass, then the model's.

The two models are never in memory together. The reference runs first and its logits go to a temporary file, whose room
is checked: tokens x vocabulary x 4 bytes for a float32 reference, which is 134 MB for 4,096 tokens of 8,192 entries and
4.3 GB for 4,096 tokens of 262,144. Nothing less than all logits gives the KL divergence, and people with a model that
just fits have no memory for a second one.

Memory beside the loaded model: the logits of one chunk, at most 256 MiB at four bytes each unless `chunk_tokens` says
otherwise; as much again for the reference's; 200 MiB of float64; 25 bytes a scored position; and the KV cache of one
window where that is longer than a chunk.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ktitan.api.planning import RulesArgument
from ktitan.engine.scoring import score
from ktitan.errors import UnsupportedError
from ktitan.tiers import Budget
from ktitan.verify.models import Candidate, Loading, by_ktitan, find_reference, living
from ktitan.verify.report import VerifyReport
from ktitan.verify.spool import LogitSpool
from ktitan.verify.tally import Tally
from ktitan.verify.windows import Ids, check_windows, windows_of_ids, windows_of_text

__all__ = ["verify_model"]

# Logits of one chunk, at four bytes each, and the longest chunk whatever the vocabulary.
LOGIT_BYTES = 256 << 20
LONGEST_CHUNK = 512

Model = str | Path | nn.Module
Progress = Callable[[str, int, int], None]


def verify_model(
    model: Model,
    against: Model | None = None,
    *,
    ids: Ids | None = None,
    text: str | Path | None = None,
    window: int = 512,
    rows: int | None = None,
    tokenizer: Any = None,
    gguf_path: str | Path | Sequence[str | Path] | None = None,
    rules: RulesArgument = "auto",
    budget: str | Budget | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    lora: str | Path | None = None,
    verify_weights: bool = False,
    against_device: str | None = None,
    against_dtype: str = "float32",
    chunk_tokens: int | None = None,
    spool: str | Path | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Score MODEL on windows of tokens, and how far it is from a reference; `ktitan.verify.tally` has the formulas.

    Every window stands alone, and its positions 1 to the end are scored. See this module for memory and disk.

    Args:
        model: MODEL (folder, `.gguf`, hub id, "demo"), or a model in memory.
        against: "stock": the folder of MODEL in stock transformers; a folder or hub id in HuggingFace's format: stock
            transformers, too; any other MODEL: loaded by ktitan with "auto" rules; or a model in memory.
        ids: integer array [rows, tokens], or a .npy file of one. Either this or `text`.
        text: a UTF-8 file, cut into windows of `window` tokens by the tokenizer of MODEL.
        rows: only the first so many windows.
        tokenizer: for `text`, where the model is in memory.
        gguf_path, rules, budget, device, dtype, lora, verify_weights: how MODEL is loaded; see `ktitan.load`.
        against_device, against_dtype: where the reference computes (default: as `device`), and what a stock one
            computes in.
        chunk_tokens: tokens in one pass; None: up to 512, fewer with a large vocabulary.
        spool: folder of the temporary file; None: the system's (beware of one that lies in memory).
        progress: called with (what is done, done, in all): "load ..." in bytes, "run ..." in tokens.

    Raises:
        KtitanError: as `ktitan.load`; ids, text or options that cannot be used, vocabularies of two sizes, figures that
            are no numbers (UnsupportedError, FormatError, WeightError); no room for the file (BudgetError).
    """
    _check_counts(rows=rows, window=window, chunk_tokens=chunk_tokens)
    if (ids is None) == (text is None):
        raise UnsupportedError("token ids or a text are to be scored, one of the two", "ids, text", "give one of them")
    cut = windows_of_ids(ids) if ids is not None else None
    context = window if cut is None else max(map(len, cut[0]))
    how = Loading(gguf_path, rules, budget, device, dtype, lora, context, verify_weights)
    candidate = living(model, tokenizer) if isinstance(model, nn.Module) else by_ktitan(model, how)
    windows, source = cut if cut is not None else windows_of_text(str(text), candidate.tokenizer(), window)
    windows = windows[:rows]
    check_windows(windows, candidate.vocabulary, source)
    size = chunk_tokens or max(1, min(LONGEST_CHUNK, LOGIT_BYTES // (4 * candidate.vocabulary)))
    run = _Run(windows, source, size, progress or (lambda what, done, total: None))
    if against is None:
        tally = run.model(candidate, None)
        return VerifyReport.from_tally(tally, _name(model), None, source, len(windows))
    how = Loading(budget=budget, device=against_device or device, context=context)
    reference = find_reference(model, against, against_dtype, how)
    _check_vocabularies(candidate, reference)
    with closing(LogitSpool(None if spool is None else Path(spool), run.tokens)) as store:
        run.reference(reference, store)
        tally = run.model(candidate, store)
    return VerifyReport.from_tally(tally, _name(model), _name(against), source, len(windows))


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise UnsupportedError(f"{count!r} is not a count", name, "give a whole number from 1 on")


def _name(model: Model) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else str(model)


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

    def model(self, candidate: Candidate, store: LogitSpool | None) -> Tally:
        """The figures of every scored position, against what `store` holds where there is one."""
        tally = Tally()

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
        return tally

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
