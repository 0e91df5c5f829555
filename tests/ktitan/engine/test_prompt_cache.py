"""Prompts that begin like earlier ones: only what is new is run, tokens are those of a cold start, room is found."""

import random
import threading
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from transformers import DynamicCache

from ktitan.context import KVAllowance
from ktitan.engine.generate import GenerationStats, generate_steps, generate_tokens, new_cache, stream
from ktitan.engine.prompt_cache import PromptCache
from ktitan.engine.steps import PromptProgress
from ktitan.errors import BudgetError, UnsupportedError

PAGE = 64


def ids(count):
    return [random.randrange(256) for _ in range(count)]


@pytest.fixture
def model(rig):
    """A random Llama that notes the tokens of each forward pass in `model.ran`."""
    made = rig.random_model(random.randrange(10**6), eos_token_id=None)
    made.ran = []
    made.register_forward_pre_hook(lambda _, __, given: made.ran.append(given["input_ids"].shape[1]), with_kwargs=True)
    return made


def answer(model, prompt, kept=None, count=6, **options):
    """Tokens, and how many were run to get the first of them."""
    del model.ran[:]
    tokens = list(generate_tokens(model, prompt, max_new_tokens=count, prompt_cache=kept, **options))
    return tokens, sum(model.ran) - (len(tokens) - 1)


def page_bytes(model):
    cache = new_cache(model)
    list(generate_tokens(model, [1], max_new_tokens=1, cache=cache))
    return cache.pool.used_bytes


def limited(model, pages):
    """Give the model a KV budget of so many pages."""
    model.ktitan = SimpleNamespace(kv_allowance=KVAllowance(pages * page_bytes(model)))
    return model


@pytest.mark.parametrize("most", [1, 4])
def test_a_second_turn_runs_only_its_new_tokens(model, most):
    kept, first = PromptCache(model, most), ids(90)
    said, ran = answer(model, first, kept)
    assert ran == 90
    second = [*first, *said, *ids(11)]
    stats = GenerationStats()
    again, ran = answer(model, second, kept, stats=stats)
    assert (ran, stats.cached_tokens, stats.prompt_tokens) == (12, 95, 12)  # the last token said was not run
    assert again == answer(model, second)[0]
    assert len(kept) == 1


def test_the_same_prompt_runs_one_token(model):
    kept, prompt = PromptCache(model), ids(70)
    said, _ = answer(model, prompt, kept)
    assert answer(model, prompt, kept) == (said, 1)


def test_many_conversations_that_share_their_beginning(model):
    kept, system = PromptCache(model), ids(100)
    talks = [[*system, number, *ids(89)] for number in range(4)]
    for number, talk in enumerate(talks):
        said, ran = answer(model, talk, kept)
        assert ran == (90 if number else 190)
        talk += said
    assert len(kept) == 4
    for talk in random.sample(talks, 4):
        talk += ids(5)
        assert answer(model, talk, kept)[1] == 6
        assert answer(model, talk, kept)[0] == answer(model, talk)[0]


def test_shared_pages_are_there_once(model):
    kept, system = PromptCache(model), ids(5 * PAGE)
    answer(model, [*system, *ids(2 * PAGE)], kept, count=1)
    answer(model, [*system, *ids(10)], kept, count=1)
    assert kept.used_bytes == 8 * page_bytes(model)


def test_templates_that_rewrite_earlier_turns_reuse_what_is_left(rig, model):
    """One that drops the reasoning of answers before the last question."""
    template = (
        "{% for m in messages %}<|start|>{{ m.role }}\n"
        "{{ m.content.split('</think>')[-1] if not loop.last else m.content }}<|end|>\n{% endfor %}<|start|>assistant\n"
    )
    tokenizer, kept = rig.byte_tokenizer(template), PromptCache(model, 1)
    asked = [{"role": "user", "content": "a long question " * 5}]
    said = "".join(stream(model, tokenizer, asked, max_new_tokens=5, prompt_cache=kept))
    told, stats = [], GenerationStats()
    talk = [*asked, {"role": "assistant", "content": f"thoughts</think>{said}"}, {"role": "user", "content": "go on"}]
    told_text = "".join(
        stream(
            model,
            tokenizer,
            talk,
            max_new_tokens=8,
            prompt_cache=kept,
            stats=stats,
            on_prompt=lambda *at: told.append(at),
        )
    )
    first = tokenizer(tokenizer.apply_chat_template(asked, tokenize=False), add_special_tokens=False)["input_ids"]
    assert len(first) <= stats.cached_tokens < len(first) + 6
    assert told == [(stats.cached_tokens, stats.cached_tokens + stats.prompt_tokens), (told[-1][1], told[-1][1])]
    assert told_text == "".join(stream(model, tokenizer, talk, max_new_tokens=8))


def test_whoever_leaves_leaves_what_was_read(model):
    kept, prompt = PromptCache(model), ids(100)
    steps = generate_steps(model, prompt, max_new_tokens=4, chunk_tokens=32, prompt_cache=kept)
    assert list(islice(steps, 3)) == [PromptProgress(done, 100) for done in (0, 32, 64)]
    steps.close()
    assert answer(model, prompt, kept)[1] == 36
    del model.ran[:]
    unused = generate_steps(model, prompt, max_new_tokens=4, prompt_cache=kept)
    unused.close()  # was never begun
    assert answer(model, prompt, kept)[1] == 1


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError])
def test_a_step_that_ends_in_the_middle_of_the_layers_leaves_the_steps_before(model, fault):
    kept, prompt = PromptCache(model), ids(60)

    def fail(*_):
        if sum(model.ran) == 62:
            raise fault

    cold = answer(model, prompt)[0]
    model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(fault):
        answer(model, prompt, kept)
    del model.ran[:]
    again = [*prompt, *cold[:1], *ids(3)]
    assert answer(model, again, kept)[1] == 3  # 61 were there
    assert answer(model, again, kept)[0] == answer(model, again)[0]


def test_kept_prompts_make_room(model):
    limited(model, 6)
    kept = PromptCache(model)
    talks = [[number, *ids(2 * PAGE - 1)] for number in range(3)]
    for talk in talks:
        assert answer(model, talk, kept, count=1)[1] == 2 * PAGE
    assert answer(model, talks[0], kept, count=1)[1] == 1  # now the last used
    long = [3, *ids(4 * PAGE - 3)]
    assert answer(model, long, kept, count=3)[0] == answer(model, long, count=3)[0]
    assert len(kept) == 2
    assert answer(model, talks[0], kept, count=1)[1] == 1


def test_all_of_the_budget_is_there_for_one_prompt(model):
    """Also where its beginning is shared with a kept one: the page that both go on from is not copied then."""
    limited(model, 4)
    for start in (0, 1, PAGE, PAGE + 9, 3 * PAGE - 1):
        kept = PromptCache(model)
        first = ids(4 * PAGE)
        answer(model, first, kept, count=1)
        full = [*first[:start], *ids(4 * PAGE - start)]
        expected = answer(model, full, count=1)[0]
        assert answer(model, full, kept, count=1) == (expected, 4 * PAGE - start)
        with pytest.raises(BudgetError):
            answer(model, ids(4 * PAGE + 1), kept, count=1)
        assert answer(model, full, kept, count=1)[0] == expected


def test_a_prompt_that_grows_past_the_budget_ends_as_it_does_without(model):
    limited(model, 3)
    kept, prompt = PromptCache(model), ids(PAGE)
    answer(model, [(prompt[0] + 1) % 256] * PAGE, kept, count=1)
    ends = []
    for prompt_cache in (None, kept):
        made = []
        with pytest.raises(BudgetError):
            for token in generate_tokens(model, prompt, max_new_tokens=400, prompt_cache=prompt_cache):
                made.append(token)
        ends.append(made)
    assert ends[0] == ends[1]
    assert len(ends[0]) == 2 * PAGE + 1
    assert len(kept) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.model.layers[0].mlp.up_proj.weight.detach().mul_(1.5),
        lambda model: model.model.layers[0].mlp.register_forward_hook(lambda _, __, out: out * 1.5),
        lambda model: model.model.layers[0].mlp.register_module("up_proj", torch.nn.Linear(32, 48, bias=False)),
    ],
    ids=["written in place", "hooked", "replaced"],
)
def test_other_weights_begin_anew(model, change):
    kept, prompt = PromptCache(model), ids(50)
    answer(model, prompt, kept)
    change(model)
    said, ran = answer(model, prompt, kept)
    assert (said, ran) == (answer(model, prompt)[0], 50)
    assert answer(model, prompt, kept)[1] == 1


def test_two_at_a_time(model):
    """The second runs without it, and the first one's pages are not touched."""
    kept, prompts = PromptCache(model), [ids(40), ids(40)]
    expected = [answer(model, prompt, count=12)[0] for prompt in prompts]
    runs = [generate_tokens(model, prompt, max_new_tokens=12, prompt_cache=kept) for prompt in prompts]
    made = [[], []]
    for pair in zip(*runs, strict=True):
        for tokens, token in zip(made, pair, strict=True):
            tokens.append(token)
    assert made == expected
    assert len(kept) == 1
    assert answer(model, prompts[0], kept)[1] == 1


def test_cleared_from_another_thread_while_it_runs(model):
    kept = PromptCache(model)
    for _ in range(3):
        answer(model, ids(40), kept)
    prompt = ids(40)
    expected = answer(model, prompt, count=60)[0]
    stop = threading.Event()

    def clear():
        while not stop.is_set():
            kept.clear()

    thread = threading.Thread(target=clear)
    thread.start()
    try:
        assert answer(model, prompt, kept, count=60)[0] == expected
    finally:
        stop.set()
        thread.join()
    kept.clear()
    assert (len(kept), kept.used_bytes) == (0, 0)


def test_a_loan_that_nobody_ended(model):
    kept = PromptCache(model)
    answer(model, ids(30), kept)
    kept.lend(torch.tensor(ids(10)))  # and lost
    prompt = ids(30)
    assert answer(model, prompt, kept)[1] == 30
    assert answer(model, prompt, kept)[1] == 1


def test_what_cannot_be_taken_back_is_left_out_with_a_reason(rig, model, monkeypatch):
    monkeypatch.setattr("ktitan.engine.prompt_cache.new_cache", lambda model: DynamicCache(config=model.config))
    kept = PromptCache(model)
    assert "more than keys and values" in kept.refusal
    prompt = ids(30)
    assert [answer(model, prompt, kept) for _ in range(2)] == [answer(model, prompt)] * 2
    monkeypatch.undo()
    monkeypatch.setattr(type(model), "_is_stateful", True)
    assert "running state" in PromptCache(model).refusal
    monkeypatch.undo()
    model.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert "dynamic" in PromptCache(model).refusal


def test_misuse(rig, model):
    kept = PromptCache(model)
    with pytest.raises(UnsupportedError, match="another model"):
        generate_tokens(rig.random_model(1), [1], max_new_tokens=1, prompt_cache=kept)
    with pytest.raises(UnsupportedError, match="give one of them"):
        generate_tokens(model, [1], max_new_tokens=1, prompt_cache=kept, cache=new_cache(model))
    with pytest.raises(UnsupportedError, match="most_prompts"):
        PromptCache(model, 0)


def test_the_context_bounds_prompt_and_answer(model):
    stats = GenerationStats()
    prompt = ids(20)
    made, _ = answer(model, prompt, count=50, context_tokens=30, stats=stats)
    assert (len(made), stats.stop_reason) == (10, "context")
    with pytest.raises(UnsupportedError, match="there is room for 20"):
        generate_tokens(model, prompt, max_new_tokens=1, context_tokens=20)
