import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from ktitan.errors import WeightError
from ktitan.operators import TorchLinear

from support.operator_rig import StateWeights, context_for, fresh_seed, loaded, meta_twin, randomize, refusal


def random_linear(inputs, outputs, bias=True, dtype=torch.float32):
    generator = torch.Generator().manual_seed(fresh_seed())
    return randomize(nn.Linear(inputs, outputs, bias=bias), generator).to(dtype)


@pytest.mark.parametrize("shape", [(1, 1), (7, 13), (64, 33), (129, 256)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_same_bits_as_stock(shape, bias, dtype):
    stock = random_linear(*shape, bias, dtype)
    operator = loaded("linear.torch", stock, dtype)
    for rows in ((3,), (2, 5), (0,), (1, 1, 1)):
        x = torch.randn(*rows, shape[0]).to(dtype)
        assert torch.equal(operator(x), stock(x))
    assert list(operator.state_dict()) == list(stock.state_dict())
    assert not any(parameter.requires_grad for parameter in operator.parameters())


def test_dtype_is_stored_and_computed_in():
    stock = random_linear(24, 10, dtype=torch.bfloat16)
    operator = loaded("linear.torch", stock, torch.bfloat16, config=TorchLinear.Config(dtype="float32"))
    x = torch.randn(4, 24).bfloat16()
    assert operator.weight.dtype == torch.float32
    expected = nn.functional.linear(x.float(), stock.weight.float(), stock.bias.float())
    assert torch.equal(operator(x), expected.bfloat16())


def test_memory_follows_the_dtype():
    stock = meta_twin(random_linear(24, 10, dtype=torch.bfloat16))
    plain = TorchLinear.memory(context_for(stock), TorchLinear.Config())
    wide = TorchLinear.memory(context_for(stock), TorchLinear.Config(dtype="float32"))
    assert (plain.resident_bytes, wide.resident_bytes) == (500, 1000)
    assert wide.format == "f32"


@pytest.mark.parametrize(
    ("bias", "dtype", "dense"), [(False, None, True), (True, None, False), (False, "float16", False)]
)
def test_dense_weight_is_offered_only_when_it_is_the_whole_story(bias, dtype, dense):
    operator = loaded("linear.torch", random_linear(5, 4, bias), config=TorchLinear.Config(dtype=dtype))
    assert (operator.dense_weight() is not None) is dense


class Doubling(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


class Renamed(nn.Linear):
    pass


def with_hook(module):
    module.register_forward_hook(lambda *_: None)
    return module


def with_own_forward(module):
    module.forward = lambda x: x
    return module


def with_packed_weight(module):
    module.weight = nn.Parameter(torch.zeros(4, 5, dtype=torch.int8), requires_grad=False)
    return module


@pytest.mark.parametrize(
    ("module", "clause"),
    [
        (nn.Bilinear(2, 2, 2), "not an nn.Linear"),
        (Doubling(5, 4), "Doubling has a forward of its own"),
        (with_hook(nn.Linear(5, 4)), "hooks"),
        (with_own_forward(nn.Linear(5, 4)), "forward was replaced"),
        (with_packed_weight(nn.Linear(5, 4)), "int8"),
        (parametrize.register_parametrization(nn.Linear(5, 4), "weight", nn.Identity()), "parametrizations"),
    ],
)
def test_refuses_what_it_does_not_compute(module, clause):
    assert clause in refusal("linear.torch", module)


def test_a_subclass_without_a_forward_is_a_linear():
    assert refusal("linear.torch", Renamed(5, 4)) is None


def test_wrong_and_missing_tensors_are_named():
    stock = random_linear(5, 4)
    operator = TorchLinear.from_module(stock, TorchLinear.Config(), context_for(stock, "model.layers.0.q_proj"))
    with pytest.raises(WeightError, match=r"model\.layers\.0\.q_proj: weight has shape \(4, 6\)"):
        operator.load(StateWeights(nn.Linear(6, 4)))
    with pytest.raises(WeightError, match="bias"):
        operator.load(StateWeights(nn.Linear(5, 4, bias=False)))
