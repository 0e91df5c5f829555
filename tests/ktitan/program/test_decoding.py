"""Steps of one token in one native call: logits and tokens of whole steps, at page edges and with others in between."""

import copy
import random

import pytest
import torch

from ktitan.engine.cache import KtitanCache
from ktitan.engine.generate import generate_steps, generate_tokens, new_cache
from ktitan.engine.kv_native import NativeKVPool
from ktitan.engine.sampling import Sampling
from ktitan.engine.steps import Token
from ktitan.errors import BudgetError, UnsupportedError
from ktitan.native.choosing import NativeChoice
from ktitan.native.decoding import NOT_READY, UNSURE

from support.operator_rig import fresh_seed, tiny_model
from support.programs import native_cache, on_cpu, program_of, random_ids

SAMPLINGS = {
    "greedy": Sampling(greedy=True),
    "penalty": Sampling(greedy=True, repetition_penalty=1.4),
    "top-k": Sampling(temperature=0.8, top_k=12, top_p=0.9, seed=5),
    "all": Sampling(seed=6),
    "min-p": Sampling(min_p=0.05, seed=7),
}


@pytest.fixture(scope="module", params=["llama", "gemma3", "deepseek_v3"])
def model(request):
    return on_cpu(tiny_model(request.param, fresh_seed()))


def answer(model, prompt, count=8, **options):
    return list(generate_tokens(model, prompt, max_new_tokens=count, ignore_eos=True, **options))


def by_modules(model, prompt, count=8, **options):
    program, model.ktitan.program = model.ktitan.program, None
    try:
        return answer(model, prompt, count, **options)
    finally:
        model.ktitan.program = program


def begun(model, held):
    """A program, a cache that holds `held` tokens, its steps to come, and the ids that follow."""
    ids, cache, program = random_ids(model, held + 140, 3), native_cache(model), program_of(model, check=False)
    program.run(ids[:held], cache)
    return program, cache, program.decoding(cache, None), ids[held:].tolist()


@pytest.mark.parametrize("held", [1, 62, 63, 64, 127, 255])
def test_logits_at_the_edges_of_pages_and_tables(model, held):
    """A table of positions has 256 rows at first; a page 64."""
    program, cache, decoding, ids = begun(model, held)
    other = copy.deepcopy(cache)
    ready = 0
    for at, token in enumerate(ids[:4], held):
        expected = program.run(torch.tensor([token]), other)
        status = decoding.next(token, at, 0.0)
        if status == NOT_READY:
            found = program.run(torch.tensor([token]), cache)
            decoding.refresh()
        else:
            assert status == UNSURE
            found, ready = decoding.logits, ready + 1
        assert torch.equal(found, expected)
        assert cache.get_seq_length() == at + 1
    assert ready >= 2


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_the_tokens_of_whole_steps(model, kind):
    prompt, sampling = random_ids(model, 60, random.randrange(99)), SAMPLINGS[kind]
    assert answer(model, prompt, 12, sampling=sampling) == by_modules(model, prompt, 12, sampling=sampling)


def test_probabilities(model):
    prompt = random_ids(model, 60, 1)

    def tokens():
        steps = generate_steps(model, prompt, max_new_tokens=8, ignore_eos=True, likeliest=3)
        return [one for one in steps if isinstance(one, Token)]

    found, program = tokens(), model.ktitan.program
    model.ktitan.program = None
    expected = tokens()
    model.ktitan.program = program
    assert found == expected


def test_generations_that_take_turns(model):
    prompts = [random_ids(model, count, count) for count in (9, 61, 70)]
    alone = [answer(model, prompt, 20) for prompt in prompts]
    running = [generate_tokens(model, prompt, max_new_tokens=20, ignore_eos=True) for prompt in prompts]
    together = [[] for _ in prompts]
    for _ in range(20):
        for number in random.sample(range(3), 3):
            together[number].append(next(running[number]))
    assert together == alone


def test_a_cache_that_is_copied_or_cut_between_steps(model):
    """A copy shares the page that is written next; what is cut is run again, by whole steps."""
    prompt, cache = random_ids(model, 70, 2), new_cache(model)
    expected = answer(model, prompt, 30)
    running = generate_tokens(model, prompt, max_new_tokens=30, ignore_eos=True, cache=cache)
    found = [next(running) for _ in range(5)]
    fork = copy.deepcopy(cache)
    found += running
    assert found == expected
    assert fork.get_seq_length() == 74
    after = torch.tensor([*prompt.tolist(), *expected[:5]])
    assert answer(model, after, 25, cache=fork) == expected[5:]


def test_a_pool_without_room(model):
    pool = NativeKVPool()
    model.ktitan.program.run(random_ids(model, 9, 1), KtitanCache(config=model.config, pool=pool))
    cache = KtitanCache(config=model.config, pool=NativeKVPool(pool.allocated_bytes))
    running = generate_tokens(model, random_ids(model, 60, 1), max_new_tokens=30, ignore_eos=True, cache=cache)
    found = []
    with pytest.raises(BudgetError):
        found.extend(running)
    assert cache.get_seq_length() == 64


def test_a_token_that_is_none(model):
    program, cache, decoding, _ = begun(model, 9)
    assert decoding.next(10**6, 9, 0.0) == NOT_READY
    assert cache.get_seq_length() == 9
    with pytest.raises(UnsupportedError, match="row"):
        program.run(torch.tensor([10**6]), cache)


def test_a_sequence_that_is_not_where_it_was(model):
    _, cache, decoding, ids = begun(model, 9)
    assert decoding.next(ids[0], 8, 0.0) == NOT_READY
    cache.reset()
    assert decoding.next(ids[0], 9, 0.0) == NOT_READY


def test_the_choice_is_made_with_the_step(model):
    program, cache, _, ids = begun(model, 9)
    decoding = program.decoding(cache, NativeChoice())
    assert decoding.next(ids[0], 9, 0.0) == int(decoding.logits.argmax())
