"""The program that a loaded model has: who uses it, when it is made, and what takes it away."""

import pytest
import torch

import ktitan
from ktitan.engine.cache import KtitanCache
from ktitan.engine.generate import generate_tokens
from ktitan.native.decoding import NOT_READY
from ktitan.program import StepProgram
from ktitan.program.decoding import Decoding

from support.operator_rig import fresh_seed, tiny_model
from support.packed_models import write_packed
from support.programs import STREAMED, load, on_cpu, random_ids
from support.streaming import cache_of


@pytest.fixture
def steps(monkeypatch):
    """The lengths of the steps that any program has run."""
    lengths, run, following = [], StepProgram.run, Decoding.next

    def watched(self, ids, cache):
        lengths.append(len(ids))
        return run(self, ids, cache)

    def watched_next(self, *arguments):
        chosen = following(self, *arguments)
        lengths.extend([1] * (chosen != NOT_READY))
        return chosen

    monkeypatch.setattr(StepProgram, "run", watched)
    monkeypatch.setattr(Decoding, "next", watched_next)
    return lengths


def ids_of(model, prompt, **options):
    return list(generate_tokens(model, prompt, max_new_tokens=6, ignore_eos=True, **options))


def test_generation_uses_it_and_gives_the_same_tokens(steps):
    seed = fresh_seed()
    model = on_cpu(tiny_model("qwen3_moe", seed))
    prompt = random_ids(model, 80, seed)
    steps.clear()
    found = ids_of(model, prompt, chunk_tokens=50)
    assert steps == [50, 30, *[1] * 5]
    assert any("steps run as a program of" in note for note in model.ktitan.plan.notes)
    model.ktitan.program = None
    assert ids_of(model, prompt) == found
    assert len(steps) == 7


def test_pages_of_torch_tensors_are_for_the_modules(steps):
    model = on_cpu(tiny_model("llama", 1))
    steps.clear()
    assert len(ids_of(model, random_ids(model, 9, 1), cache=KtitanCache(config=model.config))) == 6
    assert not steps


def test_a_hook_takes_it_away_until_it_is_gone(steps):
    model, seen = on_cpu(tiny_model("llama", 1)), []
    steps.clear()
    handle = model.model.layers[0].mlp.register_forward_hook(lambda *_: seen.append(1))
    assert model.ktitan.program is None
    ids_of(model, random_ids(model, 9, 1))
    assert len(seen) == 6 and not steps
    handle.remove()
    assert model.ktitan.program is not None


def test_what_is_streamed_is_read_by_the_first_generation_only(tmp_path, steps):
    path = tmp_path / "model.gguf"
    write_packed(path, "mixtral", "q4_k", 3)
    with cache_of(0.6):
        model = load(path, STREAMED)
    assert not steps
    assert not any("steps run" in note for note in model.ktitan.plan.notes)
    ids_of(model, random_ids(model, 9, 1))
    assert any("steps run as a program" in note for note in model.ktitan.plan.notes)
    assert 9 in steps
    model.ktitan.undo()


def test_a_model_that_cannot_says_why():
    model = tiny_model("gemma2", 1)
    model = ktitan.optimize_and_load(model, {"version": 1, "rules": []}, device="cpu")
    assert model.ktitan.program is None
    (note,) = [note for note in model.ktitan.plan.notes if "steps run" in note]
    assert note.startswith("steps run as modules: ")
    with torch.inference_mode():
        assert model(torch.tensor([[5, 6]])).logits.shape[1] == 2
