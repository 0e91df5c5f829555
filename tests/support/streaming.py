"""Models loaded resident and streamed by the same kernels, with a cache of any size, and small mixtures to stream."""

import dataclasses
import importlib.util
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch

import ktitan
from ktitan.tiers.store import TierStore

from support.good_models import save_gguf, small_llama

REPOSITORY = Path(__file__).resolve().parents[2]
SHARES = (1.0, 0.5, 0.25, 0.1)


def rules(kind, embedding=None):
    """Every matrix by the operators called `kind`: "cpu" or "streamed"; what cannot be streamed stays resident."""
    linear = [f"linear.{kind}", "linear.cpu", "linear.torch"]
    return {
        "version": 1,
        "rules": [
            # Absorbed attention takes this one apart.
            {"match": {"name": r".*\.kv_b_proj"}, "replace": {"class": "linear.torch"}, "optional": True},
            {"match": {"class": "Linear"}, "replace": {"class": list(dict.fromkeys(linear))}},
            {"match": {"name": r".*\.experts"}, "replace": {"class": f"experts.{kind}"}, "optional": True},
            {"match": {"class": "Embedding"}, "replace": {"class": f"embedding.{embedding or kind}"}},
        ],
    }


@contextmanager
def cache_of(share):
    """Stores opened inside hold this share of what is streamed (None: what they are given); yields them, as opened."""
    original, opened = TierStore.open, []

    def open_(self, limits, stamps):
        wanted = limits.cache_bytes if share is None else int(share * self.need.all_bytes)
        opened.append(SimpleNamespace(store=self, cache_bytes=wanted, need=self.need))
        original(self, dataclasses.replace(limits, cache_bytes=wanted), stamps)

    TierStore.open = open_
    try:
        yield opened
    finally:
        TierStore.open = original


def load_resident(path, **options):
    """The model with all weights in memory."""
    return ktitan.load(path, rules=rules("cpu"), device="cpu", **options)[0]


def load_streamed(path, share, embedding="streamed", **options):
    """The model and its store, which holds `share` of the streamed weights."""
    with cache_of(share) as opened:
        model, _ = ktitan.load(path, rules=rules("streamed", embedding), device="cpu", **options)
    assert len(opened) == 1
    return model, opened[0].store


def logits(model, ids):
    """[B, T] -> [B, T, V]."""
    with torch.inference_mode():
        return model(ids).logits


def greedy(model, ids, tokens=12):
    """[1, T] -> `tokens` more ids."""
    return model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)[0, ids.shape[1] :]


def make_moe():
    """examples/make_moe.py as a module."""
    spec = importlib.util.spec_from_file_location("make_moe", REPOSITORY / "examples" / "make_moe.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def save_mixture(folder, experts=24, top_k=3, layers=3, hidden=128, neurons=1024, seed=0):
    """A mixture by make_moe of a random dense model; returns its path. An expert of these sizes has 221 KB."""
    example = make_moe()
    model = small_llama(
        hidden_size=hidden, intermediate_size=neurons, num_hidden_layers=layers, max_position_embeddings=1024
    )
    source = save_gguf(folder / "dense.gguf", model, kind="q4_0")
    dense = example.Dense(source, None)
    path = folder / "mixture.gguf"
    example.write(path, dense, example.entries(dense, experts, seed), experts, top_k)
    source.unlink()
    return path
