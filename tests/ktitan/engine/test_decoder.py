"""Step programs: they run where a model has one and its modules are as they were; kept prompts make room for them."""

import random

import pytest
import torch
from transformers import DynamicCache

import ktitan
from ktitan.context import step
from ktitan.engine.decoder import cache_keyword
from ktitan.engine.generate import GenerationStats, generate_tokens, new_cache
from ktitan.engine.prompt_cache import PromptCache

from support.tiny_models import VOCABULARY, tiny_model

PAGE = 64


class Program:
    """A step program by the model's own modules, as `ktitan.program` promises it."""

    def __init__(self, model):
        self.model = model
        self.ran = []

    def run(self, ids, cache):
        assert ids.dtype == torch.int64 and ids.dim() == 1
        seen = cache.get_seq_length()
        context = cache.step_context(ids.shape[0])
        self.ran.append(ids.shape[0])
        positions = torch.arange(seen, seen + ids.shape[0])[None]
        keyword = {cache_keyword(self.model): cache}
        with step(context):
            return self.model(input_ids=ids[None], position_ids=positions, use_cache=True, **keyword).logits[:, -1]


@pytest.fixture
def model():
    made = ktitan.optimize_and_load(tiny_model("qwen2_moe"), "auto", keep_original=True)
    made.ktitan.program = Program(made)
    return made


def ids(count):
    return [random.randrange(3, VOCABULARY) for _ in range(count)]


def answer(model, prompt, count=6, **options):
    return list(generate_tokens(model, prompt, max_new_tokens=count, **options))


def modules_only(model, prompt, **options):
    program, model.ktitan.program = model.ktitan.program, None
    try:
        return answer(model, prompt, **options)
    finally:
        model.ktitan.program = program


def test_a_program_runs_chunks_and_tokens(model):
    prompt, stats = ids(40), GenerationStats()
    expected = modules_only(model, prompt)
    assert answer(model, prompt, chunk_tokens=16, stats=stats) == expected
    assert model.ktitan.program.ran == [16, 16, 8, *[1] * 5]
    assert stats.kv_bytes > 0
    given = new_cache(model)
    assert answer(model, prompt, cache=given) == expected
    assert answer(model, prompt, cache=DynamicCache(config=model.config)) == expected
    assert len(model.ktitan.program.ran) == 8 + 6


def test_modules_run_while_they_do_more_than_the_program(model, tmp_path):
    program, prompt = model.ktitan.program, ids(20)
    hook = model.model.layers[1].register_forward_hook(lambda _, __, out: None)
    answer(model, prompt)
    assert (program.ran, model.ktitan.program) == ([], None)
    hook.remove()
    with model.ktitan.record_trace(tmp_path / "t.npz") as recorder:
        answer(model, prompt)
        assert recorder.tokens == 25
    assert program.ran == []
    answer(model, prompt)
    assert program.ran == [20, 1, 1, 1, 1, 1]
    model.ktitan.undo()
    assert getattr(getattr(model, "ktitan", None), "program", None) is None


def test_kept_prompts_make_room_for_a_program(model):
    cache = new_cache(model)
    answer(model, [5], count=1, cache=cache)
    model.ktitan.kv_allowance.limit_bytes = 3 * cache.pool.used_bytes
    kept, prompt = PromptCache(model), ids(3 * PAGE)
    answer(model, ids(2 * PAGE), count=1, prompt_cache=kept)
    assert answer(model, prompt, count=1, prompt_cache=kept) == modules_only(model, prompt, count=1)
    assert len(kept) == 1


def test_what_is_kept_is_forgotten_with_the_modules_and_with_a_smaller_budget(model):
    kept, prompt = PromptCache(model), ids(30)

    def cached():
        stats = GenerationStats()
        answer(model, prompt, prompt_cache=kept, stats=stats)
        return stats.cached_tokens

    assert [cached(), cached()] == [0, 29]
    limit = model.ktitan.plan.limits["ram"]
    model.ktitan.rebudget(f"ram={limit}")
    assert cached() == 29
    model.ktitan.rebudget(f"ram={limit - 1024}")
    assert (len(kept), kept.allocated_bytes, model.ktitan.kv_allowance.held_bytes) == (0, 0, 0)
    assert [cached(), cached()] == [0, 29]
    model.ktitan.undo()
    assert len(kept) == 0
    assert [cached(), cached()] == [0, 29]
