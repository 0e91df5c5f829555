"""Formulas are read off from numbers: which sum or product a tensor is."""

import pytest
import torch

from ktitan.program.solve import Solver

from support.operator_rig import fresh_seed


@pytest.fixture
def known():
    """A solver that knows three random values, and these."""
    generator = torch.Generator().manual_seed(fresh_seed())
    solver = Solver()
    values = [torch.randn(1, 3, 40, generator=generator) for _ in range(3)]
    for value in values:
        solver.know(value)
    return solver, values


def rebuilt(solver, number):
    """The bits of a value by its formula."""
    formula, tensor = solver.values[number].formula, solver.values[number].tensor
    if formula is None:
        return tensor
    parts = [rebuilt(solver, part) for part in formula.parts]
    if formula.kind == "add":
        return parts[0] + parts[1]
    return parts[0] * formula.factor if formula.kind == "scale" else parts[0][:, -1:]


@pytest.mark.parametrize(
    "made",
    [
        lambda a, b, c: b,
        lambda a, b, c: a + c,
        lambda a, b, c: b * 0.22,
        lambda a, b, c: a * 12.0,
        lambda a, b, c: c / 8.0,
        lambda a, b, c: a + b * 0.22,
        lambda a, b, c: a - c,
        lambda a, b, c: (c + a) + b,
        lambda a, b, c: c + (a + b),
        lambda a, b, c: b[:, -1:],
    ],
)
def test_what_is_a_formula_is_found_with_its_bits(known, made):
    solver, values = known
    target = made(*values)
    number = solver.solve(target)
    assert number is not None
    assert torch.equal(rebuilt(solver, number), target)


def test_derived_values_are_known_afterwards(known):
    solver, (a, b, c) = known
    first = solver.solve(a + b)
    second = solver.solve((a + b) * 3.0 + c)
    assert torch.equal(rebuilt(solver, second), (a + b) * 3.0 + c)
    assert first in {part for value in solver.values[first + 1 :] if value.formula for part in value.formula.parts}


@pytest.mark.parametrize(
    "made",
    [
        lambda a, b, c: a * b,
        lambda a, b, c: torch.tanh(a),
        lambda a, b, c: a + 1.0,
        lambda a, b, c: (a + b).flip(-1),
        lambda a, b, c: a + torch.where(a > 3, 1e-3, 0.0) + torch.ones_like(a) * 1e-6,
    ],
)
def test_anything_else_is_not(known, made):
    solver, values = known
    assert solver.solve(made(*values)) is None
