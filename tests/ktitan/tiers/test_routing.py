"""A router as a formula against the native one, and traces as they grow."""

import logging

import numpy as np
import pytest
import torch

from ktitan.errors import UnsupportedError
from ktitan.tiers import trace_steps
from ktitan.tiers.routing import Predictor, Router, RouterForm
from ktitan.tiers.trace_steps import StepLog

from support.operator_rig import fresh_seed

FORMS = [
    RouterForm(2),
    RouterForm(3, sigmoid=True),
    RouterForm(4, sigmoid=True, groups=4, groups_kept=2, group_best=2),
    RouterForm(4, groups=3, groups_kept=1, group_best=1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_native_code_chooses_what_the_formula_chooses(form, dtype):
    torch.manual_seed(fresh_seed())
    weight, bias, correction = torch.randn(12, 40), torch.randn(12), torch.randn(12) * 0.1
    router = Router(weight.to(dtype), form, bias, correction if form.sigmoid else None)
    scale, hidden = torch.rand(40) + 0.5, torch.randn(50, 40)
    expected = router.choose(hidden, 6, scale)
    assert (router.predictor(scale).predict(hidden, 6) == expected).float().mean() > 0.99
    if form.groups > 1:
        reachable = 12 // form.groups * form.groups_kept
        assert ((expected == -1).sum(-1) == max(0, 6 - reachable)).all()


def test_predictors_refuse_what_native_code_cannot_read():
    weight, form = torch.randn(4, 8), RouterForm(2)
    for bad in (weight.double(), weight.T, weight[0], weight.to("meta")):
        with pytest.raises(UnsupportedError, match="a router is"):
            Predictor(bad, form)
    with pytest.raises(UnsupportedError, match="scale is"):
        Predictor(weight, form, scale=torch.ones(4))
    predictor = Predictor(weight, form)
    for bad in (torch.randn(8), torch.randn(2, 4), torch.randn(2, 8).double()):
        with pytest.raises(UnsupportedError, match="hidden is"):
            predictor.predict(bad, 2)


def choice(tokens, experts=8, chosen=2):
    scores = np.random.default_rng(fresh_seed()).random((tokens, experts))
    return np.argsort(scores, axis=1)[:, :chosen], scores[:, :chosen]


def run(log, tokens, layers=2):
    for layer in range(layers):
        log.foretell(layer, choice(tokens, chosen=4)[0])
        log.note(layer, *choice(tokens))


def test_a_long_step_behind_a_short_one_begins_a_sequence():
    log = StepLog([3, 4], 8)
    for tokens in (20, 30, 1, 8, 9, 1):
        run(log, tokens)
    trace = log.trace("m")
    assert trace.row_starts.tolist() == [0, 59, 69] and trace.layer_ids.tolist() == [3, 4]
    assert trace.topk.shape == trace.weights.shape == (2, 69, 2) and trace.predicted.shape == (2, 69, 4)


def test_steps_that_did_not_end_are_left_out():
    log = StepLog([0, 1], 8)
    assert log.trace("") is None
    log.note(0, *choice(5))
    run(log, 3)
    log.note(0, *choice(1))
    log.note(1, *choice(2))
    assert log.tokens == 3 and log.trace("").row_starts.tolist() == [0, 3]


@pytest.mark.parametrize("numbers", [(2, 3), (3, 3)])
def test_what_cannot_be_a_trace_does_not_end_the_step(numbers):
    log = StepLog([0, 1], 8)
    run(log, 3)
    for layer, chosen in enumerate(numbers):
        log.note(layer, *choice(2, chosen=chosen))
    run(log, 3)
    with pytest.raises(UnsupportedError, match="different numbers"):
        log.trace("")


def test_a_full_trace_ends_with_one_warning(monkeypatch, caplog):
    monkeypatch.setattr(trace_steps, "MOST_TRACE_BYTES", 1000)
    log = StepLog([0, 1], 8)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            run(log, 3)
    assert 0 < log.tokens < 50 and caplog.text.count("the trace is full") == 1
    assert log.trace("").tokens == log.tokens
