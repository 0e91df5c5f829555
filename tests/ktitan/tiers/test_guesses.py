"""Experts that are read because they are foreseen: the bits, who stays, what is counted, and reads that fail."""

import os
from itertools import pairwise

import pytest
import torch

from ktitan.errors import IoError
from ktitan.native import native_reason

from support.guess_program import CHOSEN, EXPERTS, LAYERS, GuessedModel, expert_bytes, file_bytes, make_file

pytestmark = pytest.mark.skipif(native_reason() is not None, reason=f"native library {native_reason()}")

INNER = 64
THINK = 0.002


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("guesses") / "weights.bin"
    make_file(path, INNER)
    return path


@pytest.fixture
def model_of(weights):
    opened = []

    def make(path=weights, **options):
        opened.append(GuessedModel(path, inner=INNER, **options))
        return opened[-1]

    yield make
    for model in opened:
        model.store.close()


def counted(model, steps=40, **options):
    """What the steps answered, and the counters after."""
    answers = [model.step(THINK, **options) for _ in range(steps)]
    return torch.stack(answers), model.store.stats()


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("limits", [{}, {"depth": 1}, {"io": "threads", "depth": 2}], ids=str)
def test_guesses_change_no_bit_and_are_accounted_for(model_of, limits, tokens):
    seed = int.from_bytes(os.urandom(4), "little")
    (plain, off), (guessed, on) = (
        counted(model_of(seed=seed, prefetch=mode, **limits), tokens=tokens) for mode in ("off", "on")
    )
    assert torch.equal(plain, guessed)
    assert not any(value for name, value in off.items() if name.startswith(("guess", "predict")))
    assert on["demands"] == off["demands"] == on["hits"] + on["misses"]
    assert on["guesses"] >= on["guesses_used"] + on["guesses_wasted"] and on["guesses_used"] >= on["guesses_late"]
    assert on["guesses"] > 0 < on["guesses_used"]
    # Those that are there unused, or on their way, are in spare slots.
    assert on["guesses"] - on["guesses_used"] - on["guesses_wasted"] <= LAYERS * EXPERTS // 2 // 12
    # All calls but the first were foreseen.
    assert 0.9 * on["demands"] <= on["predicted"] < on["demands"] and on["predict_ns"] > 0
    assert 0.7 <= on["predicted_right"] / on["predicted"] <= 0.95


def test_a_guess_makes_no_member_leave(model_of):
    """Members leave for what is demanded and absent, or foreseen and then demanded; for nothing else."""
    model = model_of(prefetch="on", recall=0.1)
    _, stats = counted(model, 120)
    assert stats["guesses_wasted"] > stats["guesses_used"] > 0
    slots = LAYERS * EXPERTS // 2
    members = slots - slots // 12
    assert stats["evictions"] == stats["misses"] + stats["guesses_used"] - members


def test_guesses_that_fail_are_no_fault_of_the_model(model_of, weights, tmp_path):
    path = tmp_path / "short.bin"
    path.write_bytes(weights.read_bytes()[: file_bytes(INNER) - EXPERTS // 4 * expert_bytes(INNER)])
    model = model_of(path, prefetch="on", recall=0, stamped=False)
    there = range(EXPERTS * 3 // 4)
    model.may_choose[-1], model.may_guess[-1] = there, range(EXPERTS * 3 // 4, EXPERTS)
    _, stats = counted(model)
    assert stats["guesses_wasted"] > 0
    model.may_choose[-1] = model.may_guess[-1]
    model.recall = 1
    with pytest.raises(IoError):
        for _ in range(3):
            model.step(THINK)
    model.may_choose[-1], model._next = there, None
    counted(model, 5)


def test_prompts_are_neither_foreseen_nor_scored(model_of):
    model = model_of(prefetch="on")
    model.step(tokens=9)
    stats = model.store.stats()
    assert (stats["predicted"], stats["predict_ns"], stats["guesses"]) == (0, 0, 0)
    assert stats["demands"] > CHOSEN


def test_no_guess_is_made_before_an_idle_time_was_measured(model_of):
    """In the first step the drive's rate is known and every gap counts as 0, whatever the clock says."""
    model = model_of(prefetch="on")
    model.step()
    first = model.store.stats()
    assert first["predicted"] > 0 and first["misses"] > 0 == first["guesses"]
    counted(model)
    assert model.store.stats()["guesses"] > 0


def test_a_call_makes_no_more_guesses_than_the_level_says(model_of, tmp_path):
    path, made = tmp_path / "weights.bin", [0]
    make_file(path, 16, 4)
    # 10 spare slots, and more absent experts than that are foreseen: the level alone limits.
    model = GuessedModel(path, inner=16, layers=4, prefetch="on", recall=1)
    try:
        level = model.store.stats()["guess_level"]
        assert 4 * EXPERTS // 2 // 12 > level > 0
        for _ in range(100):
            model.step(0.01, tokens=8, after_call=lambda: made.append(model.store.stats()["guesses"]))
            assert all(after - before <= level for before, after in pairwise(made))
            if any(after - before == level for before, after in pairwise(made)):
                break
        assert max(after - before for before, after in pairwise(made)) == level
    finally:
        model.store.close()


def test_a_prompt_reads_nothing_ahead_that_is_there(model_of):
    """The first layer needs all of its experts, so the second one's are read on; those that it needs were there."""
    model, few = model_of(prefetch="on"), range(8)
    model.may_choose = [few, few]
    model.step(tokens=64)
    before = model.store.stats()
    assert before["misses"] == 2 * len(few) and before["guesses"] == 0
    model.may_choose, model._next = [range(EXPERTS), few], None
    model.step(tokens=64)
    after = model.store.stats()
    assert after["guesses"] > 0 == after["guesses_used"]
