"""The experts call of the native library: values, equal bits however tokens are grouped, and odd routings."""

import numpy as np
import pytest
import torch

from ktitan.errors import UnsupportedError
from ktitan.native import ExpertBank, library
from ktitan.native.library import ISAS, use_isa

from support.packed_matrices import activated, packed_matrix, product_and_bound, quantized

E, H, I = 5, 256, 256  # noqa: E741


def make_bank(rng, formats=("q4_k", "q6_k", "q8_0"), activation="silu", biases=False, hidden=H, inner=I, experts=E):
    """(bank, {name: float64 [E, N, K]}); `formats` are gate's (or None), up's and down's."""
    shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    matrices, numbers = {"gate": None}, {}
    for name, format in zip(shapes, formats, strict=True):
        if format is not None:
            rows, columns = shapes[name]
            matrices[name], flat = packed_matrix(format, experts * rows, columns, rng)
            numbers[name] = flat.reshape(experts, rows, columns)
    bias = {
        f"{name}_bias": torch.from_numpy(rng.standard_normal((experts, shapes[name][0])).astype(np.float32))
        for name in numbers
        if biases
    }
    return ExpertBank(experts, **matrices, activation=activation, **bias), numbers


def routing(rng, tokens, slots, experts=E, left_out=True):
    index = torch.from_numpy(rng.integers(0, experts + left_out, (tokens, slots)))
    return index, torch.from_numpy(rng.random((tokens, slots), dtype=np.float32))


def inputs(rng, tokens, hidden=H):
    return torch.from_numpy(rng.standard_normal((tokens, hidden)).astype(np.float32))


def run(native, hidden, index, weights, bank, arithmetic="int8"):
    out = torch.full_like(hidden, float("nan"))
    native.experts(hidden, index, weights, bank, arithmetic, out)
    return out


def reference(hidden, index, weights, bank, numbers, arithmetic):
    """The same in float64, for float32 `hidden`."""
    x = hidden.numpy()
    out = np.zeros(x.shape)
    formats = {name: getattr(bank, name).format for name in numbers}

    def product(name, values, expert):
        bias = getattr(bank, f"{name}_bias")
        exact, _ = product_and_bound(values, formats[name], numbers[name][expert], arithmetic)
        return exact + (0 if bias is None else bias[expert].double().numpy())

    for token, slot in np.ndindex(*index.shape):
        expert = int(index[token, slot])
        if expert == bank.experts:
            continue
        row = x[token : token + 1]
        up = product("up", row, expert)
        inner = (
            activated(bank.activation, product("gate", row, expert)) * up
            if bank.gate
            else activated(bank.activation, up)
        )
        out[token] += float(weights[token, slot]) * product("down", inner.astype(np.float32), expert)[0]
    return out


FORMATS = [
    ("q4_k", "q6_k", "q8_0"),
    ("q8_0", "q4_k", "q4_k"),
    ("iq2_xs", "mxfp4", "q5_k"),
    ("bf16", "f32", "f16"),
    (None, "q4_1", "q3_k"),
    (None, "bf16", "q4_0"),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("formats", FORMATS, ids=str)
@pytest.mark.parametrize(("activation", "biases"), [("silu", False), ("gelu_tanh", True)])
def test_values_with_float_activations(native, rng, isa, formats, activation, biases):
    bank, numbers = make_bank(rng, formats, activation, biases)
    hidden, (index, weights) = inputs(rng, 7), routing(rng, 7, 3)
    with use_isa(isa):
        out = run(native, hidden, index, weights, bank, "float32").numpy()
    wanted = reference(hidden, index, weights, bank, numbers, "float32")
    assert np.abs(out - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_values_with_quantised_activations(native, rng, formats):
    """The inner vector is quantised, too: where float32 rounding moves a number over an edge, one step is allowed."""
    bank, numbers = make_bank(rng, formats)
    hidden, (index, weights) = inputs(rng, 9), routing(rng, 9, 2)
    out = run(native, hidden, index, weights, bank).numpy()
    wanted = reference(hidden, index, weights, bank, numbers, "int8")
    error = np.abs(out - wanted) / np.abs(wanted).max()
    assert (error <= 1e-5).mean() > 0.7
    assert error.max() < 2e-3
    if "bf16" not in formats:
        exact = reference(hidden, index, weights, bank, numbers, "float32")
        assert np.abs(out - exact).max() > 2 * np.abs(out - wanted).max(), "the oracle does not quantise"


def test_the_oracle_rounds_like_the_contract(rng):
    x = rng.standard_normal((3, 256)).astype(np.float32)
    for name in ("q4_k", "q8_0"):
        assert 0 < np.abs(quantized(x, name) - x).max() <= 0.51 * np.abs(x).max() / 127


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("arithmetic", ["int8", "float32"])
@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_instruction_sets_agree(native, rng, two_threads, isa, formats, arithmetic):
    bank, _ = make_bank(rng, formats, biases=True)
    hidden, (index, weights) = inputs(rng, 21), routing(rng, 21, 2)
    with use_isa("generic"):
        wanted = run(native, hidden, index, weights, bank, arithmetic)
    with use_isa(isa):
        assert torch.equal(run(native, hidden, index, weights, bank, arithmetic), wanted)


def test_every_number_of_tokens_and_threads(native, rng, two_threads):
    bank, _ = make_bank(rng)
    hidden, (index, weights) = inputs(rng, 33), routing(rng, 33, 3)
    library.set_threads(1)
    single = torch.cat([run(native, hidden[t : t + 1], index[t : t + 1], weights[t : t + 1], bank) for t in range(33)])
    for threads in (1, 2, 3):
        library.set_threads(threads)
        for tokens in range(1, 34):
            out = run(native, hidden[:tokens], index[:tokens], weights[:tokens], bank)
            assert torch.equal(out, single[:tokens]), (threads, tokens)


def test_every_cut_of_a_prompt(native, rng):
    bank, _ = make_bank(rng, ("q4_k", "q4_k", "q6_k"))
    hidden, (index, weights) = inputs(rng, 11), routing(rng, 11, 2)
    whole = run(native, hidden, index, weights, bank)
    for first in range(12):
        for second in range(first, 12):
            cuts = [slice(0, first), slice(first, second), slice(second, 11)]
            assert torch.equal(torch.cat([run(native, hidden[c], index[c], weights[c], bank) for c in cuts]), whole)


def test_more_tokens_than_a_pass(native, rng, two_threads):
    bank, _ = make_bank(rng, ("q8_0", "q8_0", "q8_0"), hidden=64, inner=32)
    hidden, (index, weights) = inputs(rng, 1200, 64), routing(rng, 1200, 4)
    whole = run(native, hidden, index, weights, bank)
    order = torch.from_numpy(rng.permutation(1200))
    assert torch.equal(run(native, hidden[order], index[order], weights[order], bank), whole[order])


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 130])
def test_all_tokens_to_one_expert(native, rng, tokens):
    bank, _ = make_bank(rng)
    hidden, weights = inputs(rng, tokens), torch.ones(tokens, 1)
    out = run(native, hidden, torch.full((tokens, 1), 3), weights, bank)
    rows = [run(native, hidden[t : t + 1], torch.tensor([[3]]), weights[:1], bank) for t in range(tokens)]
    assert torch.equal(out, torch.cat(rows))


def test_the_same_expert_twice_counts_twice(native, rng):
    bank, _ = make_bank(rng)
    hidden = inputs(rng, 2)
    once = run(native, hidden, torch.tensor([[1], [4]]), torch.ones(2, 1), bank)
    twice = run(native, hidden, torch.tensor([[1, 1], [4, 4]]), torch.ones(2, 2), bank)
    assert torch.equal(twice, 2 * once)


def test_pairs_that_are_left_out_add_nothing(native, rng):
    bank, _ = make_bank(rng)
    hidden, (index, weights) = inputs(rng, 6), routing(rng, 6, 2, left_out=False)
    out = run(native, hidden, index, weights, bank)
    wider = torch.cat([index[:, :1], torch.full((6, 1), E), index[:, 1:]], 1)
    shares = torch.cat([weights[:, :1], torch.full((6, 1), float("nan")), weights[:, 1:]], 1)
    assert torch.equal(run(native, hidden, wider.contiguous(), shares.contiguous(), bank), out)
    nothing = run(native, hidden, torch.full((6, 2), E), weights, bank)
    assert torch.equal(nothing, torch.zeros(6, H))


def test_slots_are_added_in_their_order(native, rng):
    bank, _ = make_bank(rng)
    hidden, (index, weights) = inputs(rng, 8), routing(rng, 8, 4, left_out=False)
    terms = [run(native, hidden, index[:, k : k + 1].contiguous(), torch.ones(8, 1), bank) for k in range(4)]
    total = torch.zeros(8, H, dtype=torch.float64)
    for k, term in enumerate(terms):
        # One rounding for each slot: float64 holds the product of two float32 numbers exactly.
        total = (total + weights[:, k : k + 1].double() * term.double()).float().double()
    assert torch.equal(run(native, hidden, index, weights, bank), total.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("formats", [("q4_k", "q6_k", "q8_0"), ("bf16", "bf16", "bf16")], ids=str)
def test_half_tokens_round_once(native, rng, dtype, isa, formats):
    bank, _ = make_bank(rng, formats)
    hidden, (index, weights) = inputs(rng, 5).to(dtype), routing(rng, 5, 3)
    with use_isa(isa):
        out = run(native, hidden, index, weights, bank)
        assert torch.equal(out, run(native, hidden.float(), index, weights, bank).to(dtype))


@pytest.mark.parametrize(("tokens", "slots"), [(0, 2), (0, 0), (3, 0)])
def test_nothing_to_do(native, rng, tokens, slots):
    bank, _ = make_bank(rng)
    index, weights = torch.zeros(tokens, slots, dtype=torch.int64), torch.zeros(tokens, slots)
    assert torch.equal(run(native, inputs(rng, tokens), index, weights, bank), torch.zeros(tokens, H))


@pytest.mark.parametrize("wrong", [-1, E + 1, 2**40, -(2**62)])
def test_an_index_out_of_range_computes_nothing(native, rng, wrong):
    bank, _ = make_bank(rng)
    hidden, (index, weights) = inputs(rng, 4), routing(rng, 4, 2)
    index[3, 1] = wrong
    out = torch.full_like(hidden, 7)
    with pytest.raises(UnsupportedError, match=f"expert index {wrong} in a layer of {E}"):
        native.experts(hidden, index, weights, bank, "int8", out)
    assert (out == 7).all()


def test_a_token_that_is_not_finite_stays_alone(native, rng):
    bank, _ = make_bank(rng)
    hidden, (index, weights) = inputs(rng, 6), routing(rng, 6, 2, left_out=False)
    clean = run(native, hidden, index, weights, bank)
    hidden[2, 9] = float("inf")
    out = run(native, hidden, index, weights, bank)
    others = [0, 1, 3, 4, 5]
    assert out[2].isnan().all()
    assert torch.equal(out[others], clean[others])
