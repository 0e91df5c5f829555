"""Proves what a stock block computes: its own forward runs on random numbers, with stand-ins for all but its router.

Shape letters: T tokens, H hidden, E experts, K experts of a token.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ktitan.errors import UnsupportedError
from ktitan.native.routing import gated, route
from ktitan.operators.moe.parts import BlockParts, RouterForm, router_of
from ktitan.operators.stock import KEEP_REMEDY, PROBE_FAULTS, plain_attributes, probing, shell_of

__all__ = ["Proof", "combined", "prove"]

_PROBE_TOKENS = 32
# Routers see normalised rows; a second size moves scores along the logistic function.
_SIZES = (1.0, 3.0)
# Of this size all but a few probabilities of a softmax are 0: only who compares logits tells the others apart.
_HUGE = 300.0
# Means of the corrections; scores that all are negative tell what becomes of experts in groups that are left out.
_CORRECTIONS = (0.0, -2.0)
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Proof:
    """What was found to give the numbers of the stock block.

    Attributes:
        form: of its router.
        second: what the block returns beside its output: "weights" [T, K], "logits" [T, E], or "" for nothing.
    """

    form: RouterForm
    second: str


@dataclass(frozen=True)
class _Run:
    """One run of the stock block: what its experts were given, and what it returned."""

    router: nn.Module
    rows: torch.Tensor
    index: torch.Tensor
    weights: torch.Tensor
    answer: Any


class _Experts(nn.Module):
    """Stands for the routed experts: expert e multiplies with its own number, so that choices and weights show."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        super().__init__()
        self.factors = torch.rand(count, generator=generator) + 0.5
        self.call: tuple[torch.Tensor, ...] = ()

    def forward(self, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        self.call = (hidden, index, weights)
        return hidden * (self.factors[index] * weights).sum(-1, keepdim=True)


class _Shared(nn.Module):
    """Stands for a shared expert, or for its gate: the rows times a vector."""

    def __init__(self, width: int, is_gate: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.factors = torch.randn(width, generator=generator) / (width**0.5 if is_gate else 1.0)
        self.is_gate = is_gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = x * self.factors
        return product.sum(-1, keepdim=True) if self.is_gate else product


def combined(
    block: Any, parts: BlockParts, rows: torch.Tensor, index: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """rows [T, H], index [T, K], weights [T, K] -> experts + shared * sigmoid(gate), [T, H]; children are called."""
    total = getattr(block, parts.experts)(rows, index, weights)
    if parts.shared is None:
        return total
    shared = getattr(block, parts.shared)(rows)
    return total + (shared if parts.shared_gate is None else gated(shared, getattr(block, parts.shared_gate)(rows)))


@probing()
def prove(block: nn.Module, parts: BlockParts) -> Proof | str:
    """The form whose choices, weights and outputs are those of the stock block, or the reason why there is none."""
    generator = torch.Generator().manual_seed(0)
    children = _stand_ins(block, parts, generator)
    shell = shell_of(type(block), plain_attributes(block))
    shell._modules.update({**block._modules, **children})
    means = _CORRECTIONS if parts.correction else _CORRECTIONS[:1]
    try:
        tried = [_run(shell, parts, mean, _SIZES, generator) for mean in means]
        huge = _run(shell, parts, 0.0, (_HUGE,), generator)
    except PROBE_FAULTS as error:
        return f"{type(block).__name__} could not be tried on random numbers: {error}"
    for form in _forms(block, parts, tried[0].index.shape[-1]):
        if form.scores == "softmax_chosen" and not _chooses(huge, parts, form):
            continue
        if all(_chooses(run, parts, form) and _weighs(run, parts, form) for run in tried):
            return _proved(shell, parts, form, tried)
    return "its router chooses or weights otherwise than by scores, corrections and groups"


def _stand_ins(block: nn.Module, parts: BlockParts, generator: torch.Generator) -> dict[str, nn.Module]:
    router: Any = copy.deepcopy(block.get_submodule(parts.router)).to_empty(device="cpu").to(torch.float32)
    children: dict[str, nn.Module] = {
        parts.router: router,
        parts.experts: _Experts(len(router.weight), generator),
    }
    for name, is_gate in ((parts.shared, False), (parts.shared_gate, True)):
        if name is not None:
            children[name] = _Shared(parts.hidden, is_gate, generator)
    return children


def _run(
    shell: nn.Module, parts: BlockParts, mean: float, sizes: tuple[float, ...], generator: torch.Generator
) -> _Run:
    """Run the stock forward on random rows and a router with random numbers, corrections around `mean`.

    Raises:
        ValueError: it does not give its experts what it should.
    """
    router = copy.deepcopy(shell.get_submodule(parts.router))
    for name, tensor in [*router.named_parameters(), *router.named_buffers()]:
        size, middle = (
            (parts.hidden**-0.5, 0.0) if tensor.dim() == 2 else (0.1, mean if name == parts.correction else 0.0)
        )
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * size + middle)
    shell._modules[parts.router] = router
    rows = torch.cat([torch.randn((_PROBE_TOKENS, parts.hidden), generator=generator) * size for size in sizes])
    experts: Any = shell.get_submodule(parts.experts)
    experts.call = ()
    answer = shell(rows[None].clone())
    if not experts.call:
        raise ValueError("it does not call its experts")
    given, index, weights = experts.call
    if given.shape != rows.shape or not torch.equal(given, rows):
        raise ValueError("its experts compute from something else than what it is given")
    if index.dim() != 2 or index.is_floating_point() or weights.shape != index.shape:
        raise ValueError("it does not hand experts and weights [T, K] to its experts")
    return _Run(router, rows, index, weights, answer)


def _forms(block: nn.Module, parts: BlockParts, chosen: int) -> Iterator[RouterForm]:
    """What its attributes and tensors allow: which of them it is, the runs tell."""
    router: Any = block.get_submodule(parts.router)
    experts = len(router._parameters["weight"])
    groups = int(getattr(router, "num_group", None) or getattr(router, "n_group", None) or 1)
    kept = int(getattr(router, "topk_group", None) or 1)
    grouped = [(1, 1, 1)]
    if groups > 1 and experts % groups == 0 and 1 <= kept <= groups and chosen <= kept * (experts // groups):
        grouped = [*((groups, kept, best) for best in (1, 2) if best <= experts // groups), *grouped]
    factors = [getattr(one, "routed_scaling_factor", None) for one in (router, block)]
    scalings = dict.fromkeys([*(float(one) for one in factors if isinstance(one, (int, float))), 1.0])
    for scores in ("softmax_chosen", "softmax", "sigmoid"):
        for group in grouped:
            for corrected in (True, False) if parts.correction else (False,):
                for normalise in (True, False) if scores != "softmax_chosen" else (False,):
                    for scaling in scalings:
                        yield RouterForm(chosen, scores, *group, normalise, scaling, corrected)


def _chooses(run: _Run, parts: BlockParts, form: RouterForm) -> bool:
    """Whether the form chooses what the block did; one pick in all may fall on a tie."""
    return int((~_same_rows(run, _routed(run, parts, form)[0])).sum()) <= 1


def _weighs(run: _Run, parts: BlockParts, form: RouterForm) -> bool:
    """Whether the weights are those of the block where the choice is."""
    index, weights, _ = _routed(run, parts, form)
    same = _same_rows(run, index)
    ours, stock = (one.gather(1, at.argsort(-1))[same] for one, at in ((weights, index), (run.weights, run.index)))
    return torch.allclose(ours, stock.to(ours.dtype), rtol=_TOLERANCE, atol=1e-7)


def _proved(shell: nn.Module, parts: BlockParts, form: RouterForm, runs: list[_Run]) -> Proof | str:
    """Whether the outputs are those of the stock block, too."""
    seconds = set()
    for run in runs:
        index, weights, logits = _routed(run, parts, form)
        same = _same_rows(run, index)
        output, *more = run.answer if isinstance(run.answer, tuple) else (run.answer,)
        expected = combined(shell, parts, run.rows, index, weights)
        if not isinstance(output, torch.Tensor) or output.shape != (1, *run.rows.shape):
            return "it does not return [B, T, H]"
        if float((output[0] - expected)[same].abs().max()) > _TOLERANCE * float(expected.abs().max()):
            return "its output is not the sum of its experts and a shared one"
        seconds.add(_second(more, same, weights, logits))
    found = seconds.pop()
    return Proof(form, found) if not seconds and found is not None else "what it returns beside its output is not known"


def _second(more: list[Any], same: torch.Tensor, weights: torch.Tensor, logits: torch.Tensor) -> str | None:
    if not more:
        return ""
    for name, ours in (("weights", weights), ("logits", logits)):
        fits = len(more) == 1 and isinstance(more[0], torch.Tensor) and more[0].shape == ours.shape
        if fits and torch.allclose(more[0][same], ours[same], rtol=_TOLERANCE, atol=_TOLERANCE):
            return name
    return None


def _routed(run: _Run, parts: BlockParts, form: RouterForm) -> tuple[torch.Tensor, ...]:
    router = router_of(run.router, parts, form)
    if router is None:  # its copy is float32 on the CPU
        raise UnsupportedError("a router cannot be read as floats", parts.router, KEEP_REMEDY)
    return route(run.rows, router, logits=True)


def _same_rows(run: _Run, index: torch.Tensor) -> torch.Tensor:
    return (index.sort(-1).values == run.index.sort(-1).values).all(-1)
