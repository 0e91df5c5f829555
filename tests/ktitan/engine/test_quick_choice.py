"""The quick choice is the plain one: the same tokens from the same seeds, for whatever logits; and it does decide."""

import math
import random

import numpy as np
import pytest
import torch

from ktitan.engine.quick_choice import QuickChoice
from ktitan.engine.sampling import Sampler, Sampling
from ktitan.errors import UnsupportedError
from ktitan.native.choosing import NativeChoice

OPTIONS = [
    {"greedy": True},
    {"greedy": True, "repetition_penalty": 1.3},
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_k": 40, "temperature": 0.8},
    {"top_p": 0.9},
    {"top_p": 0.5, "temperature": 0.3},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
    {"temperature": 1.2, "top_k": 64, "top_p": 0.95},
]


def flat(size):
    return torch.randn(1, size) * 0.1


def peaked(size):
    """As a language model's: a few likely tokens, and a long tail."""
    logits = torch.randn(1, size) * 2
    logits[0, torch.randint(size, (30,))] += torch.rand(30) * 12
    return logits


def tied(size):
    """Few different values, so that cuts fall between equal ones."""
    return torch.randint(0, 12, (1, size)).float()


def nearly_tied(size):
    """Neighbouring floats, some of which are equal once they are divided."""
    base = torch.full((1, size), 7.3)
    return torch.nextafter(base, base + torch.randint(-1, 2, (1, size)))


def masked(size):
    logits = torch.full((1, size), -math.inf)
    logits[0, torch.randint(size, (90,))] = torch.randn(90) * 3
    return logits


def large(size):
    """As after a faulty scale: rounding of the scores is large."""
    return peaked(size) * 9 - 60


def ends(size):
    """The likely tokens are the last ones, which fill no row of blocks."""
    logits = torch.randn(1, size)
    logits[0, -7:] += 9
    return logits


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("make", [flat, peaked, tied, nearly_tied, masked, large, ends])
def test_the_same_tokens(options, make):
    seed, size = random.randrange(2**40), random.choice([50, 640, 3001, 9999])
    prompt = [random.randrange(size) for _ in range(9)]
    quick, plain = (Sampler(Sampling(**options, seed=seed), prompt) for _ in range(2))
    plain._quick = None
    logits = [make(size) for _ in range(4)]
    rows = [random.choice(logits) for _ in range(25)]
    assert [quick(row) for row in rows] == [plain(row) for row in rows]


def test_random_options_over_a_large_vocabulary():
    for _ in range(6):
        options = {
            "temperature": random.uniform(0.2, 1.5),
            "top_k": random.choice([0, 0, random.randrange(2, 300)]),
            "top_p": random.choice([1.0, random.uniform(0.05, 0.999)]),
            "seed": random.randrange(2**40),
        }
        quick, plain = Sampler(Sampling(**options)), Sampler(Sampling(**options))
        plain._quick = None
        rows = [peaked(30011) for _ in range(2)]
        assert [quick(row) for row in rows * 4] == [plain(row) for row in rows * 4], options


@pytest.mark.parametrize("options", [(0.7, 20, 0.8), (1.0, 40, 1.0), (0.8, 0, 0.9), (0.6, 0, 1.0)])
def test_it_decides_nearly_always(options):
    """Of what a language model gives; otherwise it would be of no use."""
    temperature, top_k, top_p = options
    choice = NativeChoice(*options) if top_k else QuickChoice(temperature, top_p)
    chosen = [choice.choose(peaked(20000)[0].numpy(), random.random()) for _ in range(100)]
    assert chosen.count(None) < 10


def test_a_cut_or_a_draw_too_near_to_a_boundary_is_left_to_the_plain_way():
    logits = np.random.default_rng().uniform(-40, -20, 64 * 100 + 5).astype(np.float32)
    logits[3] = logits[9] = 0.0  # half each
    assert QuickChoice(1.0, 0.5).choose(logits, 0.3) is None
    assert QuickChoice(1.0, 0.5001).choose(logits, 0.7) == 9
    assert QuickChoice(1.0, 1.0).choose(logits, 0.5) is None
    assert [QuickChoice(1.0, 1.0).choose(logits, at) for at in (0.49, 0.51)] == [3, 9]


@pytest.mark.parametrize("options", [{"greedy": True}, {}, {"top_k": 5}, {"top_p": 0.5}])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers(options, bad):
    logits = peaked(3000)
    logits[0, 2999 if random.random() < 0.5 else 77] = bad
    sampler = Sampler(Sampling(**options))
    if bad == math.inf and options == {"greedy": True}:
        assert math.isinf(logits[0, sampler(logits)])
    else:
        with pytest.raises(UnsupportedError, match="NaN"):
            sampler(logits)


def test_the_first_of_the_likeliest():
    assert NativeChoice().choose(np.array([1.0, 4.0, 4.0], dtype=np.float32), 0.0) == 1
    assert NativeChoice().choose(np.array([1.0, math.nan, 4.0], dtype=np.float32), 0.0) is None
    assert NativeChoice().choose(np.full(7, -math.inf, dtype=np.float32), 0.0) == 0


def test_numbers_drawn_in_blocks_are_those_drawn_one_by_one():
    sampler, generator = Sampler(Sampling(seed=11)), torch.Generator().manual_seed(11)
    found = [sampler.draw() for _ in range(200)]
    assert found == [torch.rand((), generator=generator, dtype=torch.float64).item() for _ in range(200)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype):
    logits = peaked(3000).to(dtype)
    options = Sampling(temperature=0.7, top_k=20, top_p=0.8, seed=random.randrange(99))
    quick, plain = Sampler(options), Sampler(options)
    plain._quick = None
    assert [quick(logits) for _ in range(20)] == [plain(logits) for _ in range(20)]
