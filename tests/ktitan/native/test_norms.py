"""RMS norm and activations of the native library against float64, and equal bits on every instruction set."""

import itertools

import pytest
import torch

from ktitan.errors import UnsupportedError
from ktitan.native import library
from ktitan.native.library import ISAS, use_isa
from ktitan.native.norms import activate, rms_norm

from support.attention_twin import normal
from support.contract_bits import fma, same_bits

WIDTHS = (1, 5, 15, 16, 33, 64, 576, 1000, 4096)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_norm_values(native, rng, width, offset):
    x, weight = normal(rng, 2, 3, width) * 5, normal(rng, width)
    wide = x.double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (weight.double() + offset)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5, offset).double(), wanted, rtol=3e-6, atol=1e-30)


def test_norm_has_the_order_of_the_contract(native, rng):
    import numpy as np

    x, weight = normal(rng, 50), normal(rng, 50)
    lanes = np.zeros(16, np.float32)
    for k, number in enumerate(x.numpy()):
        lanes[k % 16] = fma(number, number, lanes[k % 16])
    for half in (8, 4, 2, 1):
        lanes = lanes[:half] + lanes[half : 2 * half]
    mean = lanes[0] / np.float32(50) + np.float32(1e-6)
    factor = np.float32(1) / np.sqrt(mean)
    wanted = torch.from_numpy(x.numpy() * factor * weight.numpy())
    assert same_bits(rms_norm(x, weight, 1e-6), wanted)


@pytest.mark.parametrize("offset", [False, True])
def test_instruction_sets_and_threads_agree_on_norms(native, rng, two_threads, offset):
    for width, has_weight in itertools.product(WIDTHS, (False, True)):
        x, weight = normal(rng, 37, width), normal(rng, width) if has_weight else None
        with use_isa("generic"):
            wanted = rms_norm(x, weight, 1e-6, offset)
        for isa, threads in itertools.product(ISAS, (1, 2, 3)):
            library.set_threads(threads)
            with use_isa(isa):
                assert same_bits(rms_norm(x, weight, 1e-6, offset), wanted), (isa, width, threads)
    single = torch.cat([rms_norm(row[None], weight, 1e-6, offset) for row in x])
    assert same_bits(single, wanted)


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_activations(native, rng, two_threads, name):
    gate, up = normal(rng, 3, 20000) * 4, normal(rng, 3, 20000)
    formula = {"silu": torch.nn.functional.silu, "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}
    wanted = formula[name](gate.double())
    torch.testing.assert_close(activate(name, gate).double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(activate(name, gate, up).double(), wanted * up.double(), rtol=1e-5, atol=1e-6)
    with use_isa("generic"):
        generic = activate(name, gate, up)
    assert same_bits(activate(name, gate, up), generic)
    assert same_bits(activate(name, gate[:, ::2], up[:, ::2]), generic[:, ::2].contiguous())


def test_inputs_stay_and_others_are_refused(native, rng):
    x = normal(rng, 4, 32)
    before = x.clone()
    rms_norm(x, None, 1e-6)
    activate("silu", x)
    assert torch.equal(x, before)
    for wrong in (x.double(), x.to("meta"), x.clone().requires_grad_(), torch.zeros(3, 0)):
        with pytest.raises(UnsupportedError):
            rms_norm(wrong, None, 1e-6)
    with pytest.raises(UnsupportedError, match="weight has shape"):
        rms_norm(x, normal(rng, 31), 1e-6)
    with pytest.raises(UnsupportedError, match="up has shape"):
        activate("silu", x, normal(rng, 4, 31))
    with pytest.raises(UnsupportedError, match="activation 'relu'"):
        activate("relu", x)
