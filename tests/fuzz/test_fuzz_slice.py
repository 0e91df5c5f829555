"""A fast slice of `make fuzz`: fresh cases of every kind, in this process."""

import random

import pytest
from fuzz.kinds import KINDS, MOST_BYTES, run_cases

CASES = 2000


@pytest.fixture(scope="module")
def seed():
    return random.SystemRandom().randrange(2**32)


@pytest.mark.parametrize("kind", KINDS)
def test_only_errors_of_ktitan_come_out(kind, seed, tmp_path):
    """An escape names its case: PYTHONPATH=.:tests python -P -m fuzz.run --seed S --kind K --case N."""
    tally = run_cases(kind, seed, range(round(CASES * KINDS[kind].share)), tmp_path / "case")
    assert tally.escapes == []
    assert tally.grown_bytes < MOST_BYTES
    assert tally.outcomes["accepted"] < tally.outcomes.total(), (seed, "nothing was refused: do the mutations mutate?")


@pytest.mark.parametrize("kind", KINDS)
def test_the_seeds_themselves_are_accepted(kind, monkeypatch, tmp_path):
    """Without mutations much of it opens, so that refusals are the mutations' doing."""
    from fuzz import gguf_cases, json_cases, native_cases, yaml_cases

    for module in (gguf_cases, json_cases, native_cases, yaml_cases):
        for name in ("mutate_value", "mutate_bytes", "mutate_content"):
            monkeypatch.setattr(module, name, lambda rng, value, *rest: value, raising=False)
    tally = run_cases(kind, 1, range(12), tmp_path / "case")
    assert tally.escapes == []
    assert tally.outcomes["accepted"] >= 3, tally.outcomes
