import dataclasses

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm

from ktitan.errors import UnsupportedError
from ktitan.native.library import set_threads, threads
from ktitan.operators import CpuNorm, float32

from support.eager_builder import EagerBuilder
from support.operator_rig import context_for, fresh_seed, loaded, refusal, relative_difference

KINDS = [LlamaRMSNorm, GptOssRMSNorm, Gemma3RMSNorm, Qwen3NextRMSNorm]


def stock_norm(kind, width, eps=1e-6, dtype=torch.float32):
    stock = kind(width, eps=eps).to(dtype).requires_grad_(False)
    stock.weight.copy_(torch.randn(width))
    return stock


@pytest.mark.parametrize("kind", KINDS)
def test_like_stock(kind):
    torch.manual_seed(fresh_seed())
    for width, eps in ((1, 1e-6), (37, 1e-5), (512, 1e-2)):
        stock = stock_norm(kind, width, eps)
        operator = loaded("norm.cpu", stock)
        for shape in ((4, width), (2, 3, 5, width), (0, width)):
            x = torch.randn(shape) * 10 ** torch.randn(()).item()
            actual = operator(x)
            assert actual.dtype == torch.float32 and actual.shape == x.shape
            assert x.numel() == 0 or relative_difference(actual, stock(x)) < 1e-6
        sliced = torch.randn(3, 2 * width + 3)[:, 1 : width + 1]
        assert torch.equal(operator(sliced), operator(sliced.clone()))
    assert list(operator.state_dict()) == ["weight"]


def test_bits_are_those_of_a_row():
    """Neither the other rows nor the threads count."""
    torch.manual_seed(fresh_seed())
    operator = loaded("norm.cpu", stock_norm(LlamaRMSNorm, 83))
    x = torch.randn(301, 83)
    whole, before = operator(x), threads()
    try:
        for count in (1, 2, 3):
            set_threads(count)
            assert torch.equal(torch.cat([operator(part) for part in x.split(7 * count)]), whole)
    finally:
        set_threads(before)


def test_calls_that_cannot_be_native_compute_as_norm_torch():
    stock = stock_norm(LlamaRMSNorm, 24)
    operator, twin = loaded("norm.cpu", stock), loaded("norm.torch", stock)
    x = torch.randn(3, 24, requires_grad=True)
    operator(x).sum().backward()
    assert x.grad is not None
    for one in (operator, twin):
        one.bfloat16()
    half = torch.randn(3, 24, dtype=torch.bfloat16)
    assert torch.equal(operator(half), twin(half))
    assert torch.equal(operator(half.float()), twin(half.float()))
    with pytest.raises(UnsupportedError, match=r"layer\.module: its weight is torch\.bfloat16"):
        operator.lower(None, None)


def test_refuses(monkeypatch):
    stock = stock_norm(LlamaRMSNorm, 8)
    assert refusal("norm.cpu", stock) is None
    config = CpuNorm.Config()
    for change, clause in (({"dtype": torch.bfloat16}, "bfloat16"), ({"device": torch.device("meta")}, "on meta")):
        assert clause in CpuNorm.supports(dataclasses.replace(context_for(stock), **change), config)
    assert "its weight is bfloat16" in refusal("norm.cpu", stock_norm(LlamaRMSNorm, 8, dtype=torch.bfloat16))
    assert "no weight vector" in refusal("norm.cpu", torch.nn.Linear(4, 4, bias=False))
    monkeypatch.setattr(float32, "native_reason", lambda: "not built")
    assert "native CPU library is not built" in refusal("norm.cpu", stock)


@pytest.mark.parametrize("kind", KINDS)
def test_lowered(kind):
    """In a program the same bits, over one group and over several."""
    operator = loaded("norm.cpu", stock_norm(kind, 12))
    builder = EagerBuilder(None, (), 0, None)
    x = torch.randn(5, 36)
    for groups in (1, 3):
        part = x[:, : 12 * groups]
        made = operator.lower(builder, builder.value(part))
        assert torch.equal(made.numbers, operator(part.reshape(5, groups, 12)).flatten(1))
