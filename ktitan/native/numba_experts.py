"""The routed experts of one layer out of products: a pass over a few hundred tokens."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from ktitan.native.bank import ACTIVATIONS, ExpertBank
from ktitan.native.matrix import PackedMatrix
from ktitan.native.numba_operands import Operand, form_of, multiply, operand
from ktitan.native.numba_vectors import activate, weighted_sums
from ktitan.native.numba_workers import Workers, cut

__all__ = ["ExpertsPass"]


@dataclass(frozen=True)
class _Group:
    """The pairs of one expert: [start, end) in the order of pairs."""

    expert: int
    start: int
    end: int


class ExpertsPass:
    """Experts of T tokens with K slots each. A pair is a (token, slot) that is computed; pairs are sorted by expert.

    Args:
        bank: the experts.
        activations: "int8" or "float32".
        index: int64 [T, K], 0..E; E leaves the pair out.
        workers: the threads.
    """

    def __init__(self, bank: ExpertBank, activations: str, index: np.ndarray, workers: Workers) -> None:
        self.bank = bank
        self.activations = activations
        self.workers = workers
        flat = index.reshape(-1)
        order = np.argsort(flat, kind="stable")
        order = order[: np.count_nonzero(flat < bank.experts)]
        self.pairs = len(order)
        self.tokens = order // max(index.shape[1], 1)
        self.place = np.full(index.shape, -1, np.int64)
        self.place.reshape(-1)[order] = np.arange(self.pairs)
        counts = np.bincount(flat[order], minlength=bank.experts).tolist()
        ends = list(itertools.accumulate(counts))
        self.groups = [_Group(e, end - n, end) for e, (n, end) in enumerate(zip(counts, ends, strict=True)) if n]

    def run(self, hidden: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """hidden float32 [T, H], weights float32 [T, K] -> float32 [T, H]."""
        inner = self._first_products(hidden)
        results = np.empty((self.pairs, self.bank.hidden), np.float32)
        form = form_of(self.bank.down.format, self.activations)
        forms = operand(inner, [form], self.workers)
        self._products(self.bank.down, forms, results, self.bank.down_bias)
        out = np.empty_like(hidden)
        pieces = cut(len(out), len(out), 4 * results.shape[1] * weights.shape[1], self.workers.count)

        def add_up(item: int) -> None:
            part = slice(*pieces[item])
            weighted_sums(results, self.place[part], weights[part], out[part])

        self.workers.run(add_up, len(pieces))
        return out

    def _first_products(self, hidden: np.ndarray) -> np.ndarray:
        """act(gate x) * up x of every pair: [pairs, I]; without gate act(up x)."""
        bank = self.bank
        matrices = [matrix for matrix in (bank.gate, bank.up) if matrix is not None]
        forms = operand(hidden, [form_of(m.format, self.activations) for m in matrices], self.workers)
        picked = {form: rows[self.tokens] for form, rows in forms.items()}
        up = np.empty((self.pairs, bank.intermediate), np.float32)
        self._products(bank.up, picked, up, bank.up_bias)
        target = up
        if bank.gate is not None:
            target = np.empty_like(up)
            self._products(bank.gate, picked, target, bank.gate_bias)
        kernel = activate(ACTIVATIONS.index(bank.activation), bank.gate is not None)
        pieces = cut(self.pairs, self.pairs, 4 * bank.intermediate, self.workers.count)
        flat, factors, width = target.reshape(-1), up.reshape(-1), bank.intermediate

        def apply(item: int) -> None:
            kernel(flat, pieces[item][0] * width, pieces[item][1] * width, factors)

        self.workers.run(apply, len(pieces))
        return target

    def _products(
        self, matrix: PackedMatrix, forms: dict[int, Operand], out: np.ndarray, bias: torch.Tensor | None
    ) -> None:
        """out [pairs, N] = every expert's share of `matrix` [E * N, K] times the rows of its pairs, plus its bias."""
        x, width = forms[form_of(matrix.format, self.activations)], out.shape[1]
        flat = out.reshape(-1)
        items = [
            (group, *piece)
            for group in self.groups
            for piece in cut(
                width, width * len(self.groups), matrix.row_bytes * (group.end - group.start), self.workers.count
            )
        ]

        def task(item: int) -> None:
            group, first, last = items[item]
            begin = group.expert * width
            target = flat[group.start * width + first :]
            multiply(matrix, begin + first, begin + last, x[group.start : group.end], target, width)

        self.workers.run(task, len(items))
        if bias is not None:
            for group in self.groups:
                out[group.start : group.end] += bias[group.expert].numpy()
