"""Streamed models give the bits of the resident ones at every cache size, and every mix-up of records shows."""

import dataclasses

import pytest
import torch

from ktitan.formats import Span
from ktitan.native.streams import stream_experts
from ktitan.operators.experts import streamed as operator
from ktitan.tiers.record import Extent, lay_out
from ktitan.tiers.store import TierStore

from support.operator_rig import fresh_seed
from support.streaming import SHARES, greedy, load_resident, load_streamed, logits, save_mixture

# Rows and tokens of prompts.
PROMPTS = ((1, 1), (1, 7), (1, 513), (2, 7))


@pytest.fixture(scope="session")
def mixture(tmp_path_factory):
    """A small model by make_moe whose experts differ by their order and by at most 3 %."""
    return save_mixture(tmp_path_factory.mktemp("mixture"))


class Answers:
    """What a resident model says to fresh prompts."""

    def __init__(self, path, **options):
        generator = torch.Generator().manual_seed(fresh_seed())
        model = load_resident(path, **options)
        vocabulary = model.config.vocab_size
        self.path, self.options = path, options
        self.prompts = [torch.randint(3, vocabulary, size, generator=generator) for size in PROMPTS]
        self.logits = [logits(model, ids) for ids in self.prompts]
        self.greedy = greedy(model, self.prompts[1])
        assert all(one.isfinite().all() for one in self.logits)

    def differ(self, model):
        """Whether the model says anything else on the short prompts."""
        return any(
            not torch.equal(logits(model, ids), said) for ids, said in zip(self.prompts, self.logits, strict=True)
        )

    def check(self, model):
        """The same bits to each prompt, and to the short ones again when other records are resident."""
        pairs = list(zip(self.prompts, self.logits, strict=True))
        for ids, said in [*pairs, *(pair for pair in pairs if pair[0].numel() < 100)]:
            assert torch.equal(logits(model, ids), said), ids.shape
        assert torch.equal(greedy(model, self.prompts[1]), self.greedy)


@pytest.fixture(scope="module")
def of_mixture(mixture):
    return Answers(mixture)


@pytest.fixture(scope="module")
def of_tiny(tiny_gguf):
    return Answers(tiny_gguf)


@pytest.fixture(scope="module")
def of_floats(fixtures_dir):
    return Answers(fixtures_dir / "models" / "tiny-dsv3", dtype="bfloat16")


def check_at(answers, share):
    model, store = load_streamed(answers.path, share, **answers.options)
    answers.check(model)
    counted = store.stats()
    assert counted["demands"] == counted["hits"] + counted["misses"]
    assert counted["arena_bytes"] <= share * store.need.all_bytes + (2 << 20)
    # A large enough cache reads once; a smaller one must have made room.
    assert (counted["evictions"] > 0) == (share < 0.5) or share == 0.5
    assert counted["io"]["read_bytes"] >= counted["io"]["wanted_bytes"] > 0
    model.ktitan.undo()


@pytest.mark.parametrize("share", SHARES)
def test_a_mixture_by_make_moe(of_mixture, share):
    check_at(of_mixture, share)


@pytest.mark.parametrize("share", SHARES)
def test_the_tiny_model_in_q4_k_m(of_tiny, share):
    check_at(of_tiny, share)


@pytest.mark.fixtures
@pytest.mark.parametrize("share", SHARES)
def test_the_tiny_model_in_bfloat16(of_floats, share):
    check_at(of_floats, share)


# -- mutations: each puts one thing wrong between the operators and the store ------------------------------------------


def swapped(records, shape):
    """Experts 0 and 1 in each other's place."""
    return [records[1], records[0], *records[2:]]


def stale(records, shape):
    """Slots of every other expert are not filled again: the first page comes, all else is what lay there before."""

    def unread(record):
        first = record.extents[0]
        return dataclasses.replace(record, extents=(Extent(dataclasses.replace(first.span, nbytes=64), first.at),))

    return [unread(record) if number % 2 else record for number, record in enumerate(records)]


def crossed(records, shape):
    """Each gate with the down of the next expert."""
    sizes = [one.rows * one.row_bytes for one in (shape.gate, shape.up, shape.down)]
    parts = [spans_of(record, sizes) for record in records]
    following = [*parts[1:], parts[0]]
    return [
        lay_out(record.name, [[own[0]], [own[1]], [other[2]]])
        for record, own, other in zip(records, parts, following, strict=True)
    ]


def spans_of(record, sizes):
    """Where gate, up and down of a record are stored."""
    spans = []
    for place, size in zip(record.places, sizes, strict=True):
        extent = max((one for one in record.extents if one.at <= place), key=lambda one: one.at)
        spans.append(Span(extent.span.file, extent.span.offset + place - extent.at, size))
    return spans


def unchanged(records, shape):
    """No mutation: what shows that `crossed` takes records apart and joins them as they were."""
    sizes = [one.rows * one.row_bytes for one in (shape.gate, shape.up, shape.down)]
    return [lay_out(record.name, [[span] for span in spans_of(record, sizes)]) for record in records]


def differs(answers, share=0.5):
    """Whether a streamed model says anything else."""
    model, _ = load_streamed(answers.path, share, **answers.options)
    found = answers.differ(model)
    model.ktitan.undo()
    return found


@pytest.mark.parametrize("mutation", [swapped, stale, crossed, unchanged])
@pytest.mark.parametrize("name", ["of_mixture", "of_tiny"])
def test_records_that_are_mixed_up_show(name, mutation, request, monkeypatch):
    answers, add = request.getfixturevalue(name), TierStore.add_experts

    def add_experts(self, path, records, shape):
        return add(self, path, mutation(records, shape), shape)

    monkeypatch.setattr(TierStore, "add_experts", add_experts)
    # A slot is stale only where others were in it before.
    assert differs(answers, 0.25 if mutation is stale else 0.5) == (mutation is not unchanged)


@pytest.mark.parametrize("name", ["of_mixture", "of_tiny"])
def test_an_index_that_is_off_by_one_shows(name, request, monkeypatch):
    def shifted(hidden, index, weights, bank, activations):
        return stream_experts(hidden, (index + 1) % bank.experts, weights, bank, activations)

    monkeypatch.setattr(operator, "stream_experts", shifted)
    assert differs(request.getfixturevalue(name))
