"""numba's experts: their own products put together one by one, and the native library where there is one."""

import numpy as np
import pytest
import torch

from ktitan.errors import UnsupportedError
from ktitan.native import ExpertBank, PackedMatrix, library, native_reason
from ktitan.native.bank import ACTIVATIONS
from ktitan.native.cpu import CpuBackend

from support.contract_bits import fma, same_bits, wild_matrix, wild_rows

pytest.importorskip("numba", reason="numba is not installed, so there is no such backend")
from ktitan.native.numba_backend import NumbaBackend
from ktitan.native.numba_vectors import activate


@pytest.fixture(scope="module")
def two():
    """The backend with two threads."""
    return NumbaBackend(2)


def make_bank(rng, names, experts=4, inner=256, hidden=512, gated=True, biased=True, activation="silu"):
    gate, up, down = names
    first, second = (experts * inner, hidden), (experts * hidden, inner)
    biases = [torch.randn(experts, width) if biased else None for width in (inner, inner, hidden)]
    return ExpertBank(
        experts,
        wild_matrix(gate, *first, rng) if gated else None,
        wild_matrix(up, *first, rng),
        wild_matrix(down, *second, rng),
        activation,
        biases[0] if gated else None,
        *biases[1:],
    )


def experts(backend, hidden, index, weights, bank, activations="int8"):
    out = torch.full_like(hidden, float("nan"))
    backend.experts(hidden, index, weights, bank, activations, out)
    return out


def activated(bank, x):
    values = x.numpy().copy().reshape(-1)
    activate(ACTIVATIONS.index(bank.activation), False)(values, 0, values.size, values)
    return torch.from_numpy(values).view(x.shape)


def composed(backend, hidden, index, weights, bank, activations):
    """Experts out of single products, one token and slot at a time."""
    out = torch.zeros(hidden.shape, dtype=torch.float32)

    def product(matrix, bias, expert, x):
        rows = matrix.rows // bank.experts
        part, result = PackedMatrix(matrix.format, rows, matrix.columns), torch.empty(1, rows)
        part.data[...] = matrix.data[expert * rows : (expert + 1) * rows]
        backend.linear(x, part, None if bias is None else bias[expert], activations, result)
        return result

    for t, k in np.ndindex(index.shape):
        e, x = int(index[t, k]), hidden[t : t + 1].float()
        if e == bank.experts:
            continue
        inner = product(bank.up, bank.up_bias, e, x)
        if bank.gate is None:
            inner = activated(bank, inner)
        else:
            inner = activated(bank, product(bank.gate, bank.gate_bias, e, x)) * inner
        y = product(bank.down, bank.down_bias, e, inner)
        out[t] = torch.from_numpy(fma(weights[t, k].numpy(), y[0].numpy(), out[t].numpy()))
    return out.to(hidden.dtype)


@pytest.mark.parametrize(
    ("names", "gated", "biased", "activation", "activations", "dtype"),
    [
        (("q4_k", "q4_k", "q6_k"), True, False, "silu", "int8", torch.bfloat16),
        (("q8_0", "q4_k", "q4_0"), True, True, "gelu_tanh", "int8", torch.float32),
        (("f32", "bf16", "q4_1"), True, True, "silu", "int8", torch.float16),
        (("q4_0", "q5_0", "f16"), False, True, "gelu_tanh", "int8", torch.float32),
        (("q4_k", "q4_k", "q4_k"), True, True, "silu", "float32", torch.float32),
    ],
)
def test_experts_are_their_products(two, rng, names, gated, biased, activation, activations, dtype):
    bank = make_bank(rng, names, gated=gated, biased=biased, activation=activation)
    hidden, weights = wild_rows(rng, 7, 512, dtype), torch.rand(7, 3)
    index = torch.from_numpy(rng.integers(0, 5, (7, 3)))
    index[0], index[1] = 4, torch.tensor([2, 2, 0])  # nothing to compute; the same expert twice
    result = experts(two, hidden, index, weights, bank, activations)
    assert same_bits(result, composed(two, hidden, index, weights, bank, activations))
    assert (result[0] == 0).all()


def test_tokens_do_not_depend_on_their_neighbours(two, rng):
    bank = make_bank(rng, ("q8_0",) * 3, inner=64, hidden=64)
    batch = wild_rows(rng, 300, 64), torch.from_numpy(rng.integers(0, 5, (300, 2))), torch.rand(300, 2)
    parts = [experts(NumbaBackend(1), *(a[i : i + 30] for a in batch), bank) for i in range(0, 300, 30)]
    assert same_bits(experts(two, *batch, bank), torch.cat(parts))


def test_no_tokens_and_no_slots(two, rng):
    bank = make_bank(rng, ("q8_0",) * 3, inner=64, hidden=64)
    none = experts(two, torch.empty(0, 64), torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2), bank)
    assert none.shape == (0, 64)
    for index in (torch.empty(3, 0, dtype=torch.int64), torch.full((3, 2), 4)):
        assert (experts(two, torch.ones(3, 64), index, torch.ones(index.shape), bank) == 0).all()


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_index_out_of_range_is_refused_before_anything_is_computed(two, rng, wrong):
    bank = make_bank(rng, ("q8_0",) * 3)
    index, out = torch.tensor([[0, 1], [wrong, 2]]), torch.full((2, 512), 7.0)
    with pytest.raises(UnsupportedError, match=f"expert index {wrong} in a layer of 4 experts"):
        two.experts(torch.ones(2, 512), index, torch.ones(2, 2), bank, "int8", out)
    assert (out == 7).all()


@pytest.mark.parametrize("isa", library.ISAS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_experts_have_the_bits_of_the_native_library(two, rng, activation, isa):
    if native_reason() is not None:
        pytest.skip(f"nothing to compare with: the native library is {native_reason()}")
    native = CpuBackend(library.loaded())
    with library.use_isa(isa) as used:
        if used != isa:
            pytest.skip(f"this processor has no {isa}")
        for names, dtype in ((("q4_k", "q4_k", "q6_k"), torch.bfloat16), (("q8_0", "q4_1", "q4_0"), torch.float32)):
            bank = make_bank(rng, names, activation=activation)
            index, weights = torch.from_numpy(rng.integers(0, 5, (20, 3))), torch.rand(20, 3)
            for activations in ("int8", "float32"):
                arguments = wild_rows(rng, 20, 512, dtype), index, weights, bank, activations
                assert same_bits(experts(two, *arguments), experts(native, *arguments)), (names, activations)


@pytest.mark.parametrize("kind", [0, 1])
def test_activation_functions_are_close_to_the_true_ones(rng, kind):
    x = np.concatenate([rng.standard_normal(1001) * 8, [0.0, -0.0, 88.9, -104.0, 1e4, -1e4, np.inf, np.nan]])
    x, up = x.astype(np.float32), rng.standard_normal(1009).astype(np.float32)
    wide = torch.from_numpy(x).double()
    silu, gelu = torch.nn.functional.silu, torch.nn.functional.gelu
    expected = (silu(wide) if kind == 0 else gelu(wide, approximate="tanh")) * torch.from_numpy(up)
    result = x.copy()
    activate(kind, True)(result, 0, x.size, up)
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-5, atol=1e-30 if kind == 0 else 2e-6)
