"""Options of the choice: limits that are greedy, seeds, ranges, and distributions against transformers' processors."""

import math
from types import SimpleNamespace

import pytest
import torch

from ktitan.engine.sampling import Sampler, Sampling
from ktitan.errors import UnsupportedError


def random_logits(size=50, spread=3.0):
    return torch.randn(1, size) * spread


@pytest.mark.parametrize(
    "options",
    [
        {"greedy": True},
        {"temperature": 0},
        {"temperature": 0, "top_p": 0, "top_k": 0, "seed": 1},
        {"temperature": 1e-8},
        {"top_p": 0},
        {"top_k": 1},
        {"min_p": 1},
    ],
)
def test_a_greedy_limit_is_greedy_for_every_seed(options):
    for seed in (1, 2):
        sampler = Sampler(Sampling(**{"seed": seed, **options}))
        for _ in range(5):
            logits = random_logits()
            assert sampler(logits) == logits.argmax().item()


def test_zero_top_k_and_one_top_p_are_off():
    assert not Sampling(top_k=0, top_p=1.0, min_p=0.0).is_greedy


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 - 1])
def test_same_seed_same_tokens_and_the_global_generator_is_left_alone(seed):
    logits = [random_logits(spread=0.5) for _ in range(30)]
    before = torch.get_rng_state()
    runs = [[Sampler(Sampling(seed=seed))(row) for row in logits] for _ in range(2)]
    streams = [[sampler(row) for row in logits] for sampler in (Sampler(Sampling(seed=seed)) for _ in range(2))]
    assert torch.equal(before, torch.get_rng_state())
    assert runs[0] == runs[1]
    assert streams[0] == streams[1]


def test_without_a_seed_runs_differ():
    logits = torch.zeros(1, 1000)
    runs = [tuple(sampler(logits) for _ in range(8)) for sampler in (Sampler(Sampling()) for _ in range(3))]
    assert len(set(runs)) == 3


def test_frequencies_follow_the_probabilities():
    logits = random_logits(8, spread=1.0)
    sampler = Sampler(Sampling(temperature=0.7))
    draws = 4000
    counts = torch.bincount(torch.tensor([sampler(logits) for _ in range(draws)]), minlength=8)
    expected = torch.softmax(logits[0] / 0.7, dim=-1) * draws
    # Chi-square with 7 degrees of freedom passes 40 once in a million runs.
    assert (((counts - expected) ** 2) / expected).sum().item() < 40


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.4}])
def test_only_tokens_of_the_kept_set_are_drawn(options):
    logits = random_logits(40, spread=1.0)
    probabilities = torch.softmax(logits[0], dim=-1)
    order = probabilities.argsort(descending=True)
    sums = probabilities[order].cumsum(dim=0)
    kept = {
        "top_k": set(order[:3].tolist()),
        "top_p": set(order[: int((sums < 0.5).sum()) + 1].tolist()),
        "min_p": set((probabilities >= 0.4 * probabilities.max()).nonzero().flatten().tolist()),
    }[next(iter(options))]
    sampler = Sampler(Sampling(**options))
    assert {sampler(logits) for _ in range(2000)} <= kept


def test_tokens_of_probability_zero_are_never_drawn():
    logits = torch.full((1, 64), -math.inf)
    logits[0, [5, 40]] = 0.0
    sampler = Sampler(Sampling())
    assert {sampler(logits) for _ in range(300)} == {5, 40}


def test_repetition_penalty_counts_prompt_and_answer():
    logits = torch.tensor([[3.0, 2.9, 2.8, -1.0]])
    sampler = Sampler(Sampling(greedy=True, repetition_penalty=1.5), prompt_ids=[0, 0])
    assert [sampler(logits) for _ in range(3)] == [1, 2, 0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_p", 1.01),
        ("top_p", -0.5),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_k", True),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("seed", 1.5),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(UnsupportedError, match=name):
        Sampling(**{name: value})


def test_all_bad_options_are_named_at_once():
    with pytest.raises(UnsupportedError) as caught:
        Sampling(temperature=-1, top_p=3)
    assert [fault.where for fault in caught.value.faults] == ["temperature", "top_p"]


def test_nan_logits_are_a_fault_not_a_token():
    logits = random_logits()
    logits[0, 7] = math.nan
    for sampling in (Sampling(greedy=True), Sampling()):
        with pytest.raises(UnsupportedError, match="NaN"):
            Sampler(sampling)(logits)


AUTHORS = SimpleNamespace(do_sample=True, temperature=0.6, top_p=0.95, top_k=None, min_p=None, repetition_penalty=1.1)


@pytest.mark.parametrize(
    ("config", "given", "expected"),
    [
        (None, {}, Sampling(greedy=True)),
        (SimpleNamespace(do_sample=False, temperature=0.6), {}, Sampling(temperature=0.6, greedy=True)),
        (AUTHORS, {}, Sampling(temperature=0.6, top_p=0.95, repetition_penalty=1.1)),
        (AUTHORS, {"temperature": 1.0, "seed": 3}, Sampling(top_p=0.95, repetition_penalty=1.1, seed=3)),
        (AUTHORS, {"greedy": True}, Sampling(temperature=0.6, top_p=0.95, repetition_penalty=1.1, greedy=True)),
        (AUTHORS, {"temperature": 0}, Sampling(temperature=0, top_p=0.95, repetition_penalty=1.1)),
        (None, {"top_p": 0.9}, Sampling(top_p=0.9)),
        (None, {"seed": 1}, Sampling(seed=1, greedy=True)),
        (None, {"temperature": 0.5, "greedy": False}, Sampling(temperature=0.5)),
    ],
)
def test_what_the_user_leaves_out_is_the_models_own(config, given, expected):
    assert Sampling.resolve(config, **given) == expected


def test_presence_and_frequency_count_the_answer_alone():
    logits = torch.tensor([[3.0, 2.5, 2.0, 0.0]])
    chosen = {}
    for name in ("presence_penalty", "frequency_penalty"):
        sampler = Sampler(Sampling(greedy=True, **{name: 1.0}), prompt_ids=[0, 0, 0])
        chosen[name] = [sampler(logits) for _ in range(7)]
    # By hand: each token costs 1 once, or 1 each time, from the logits above; ties go to the lower id.
    assert chosen["presence_penalty"] == [0, 1, 0, 0, 0, 0, 0]
    assert chosen["frequency_penalty"] == [0, 1, 0, 2, 1, 0, 2]


def test_bias_is_added_and_can_forbid_or_force():
    logits = random_logits()
    best = logits.argmax().item()
    other = (best + 1) % 50
    assert Sampler(Sampling(greedy=True, logit_bias={best: -100.0}))(logits) != best
    assert Sampler(Sampling(greedy=True, logit_bias={other: 100}))(logits) == other
    assert {Sampler(Sampling(logit_bias={other: 100.0}))(logits) for _ in range(20)} == {other}


@pytest.mark.parametrize("bias", [{-1: 1.0}, {"1": 1.0}, {1: math.inf}, {1: "x"}, {True: 1.0}, [1]])
def test_a_bias_of_another_kind_is_refused(bias):
    with pytest.raises(UnsupportedError, match="logit_bias"):
        Sampling(logit_bias=bias)
