import pytest
import torch
from torch import nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm, Qwen3NextRMSNormGated
from transformers.models.t5.modeling_t5 import T5LayerNorm

from ktitan.errors import UnsupportedError
from ktitan.operator import OperatorConfig
from ktitan.operators.norm import NormForm, TorchNorm

from support.operator_rig import fresh_seed, loaded, refusal

LLAMA = NormForm(unit_offset=False, cast_first=True)
WIDE = NormForm(unit_offset=False, cast_first=False)
GEMMA = NormForm(unit_offset=True, cast_first=False)
CLASSES = [
    (LlamaRMSNorm, LLAMA),
    (DeepseekV3RMSNorm, LLAMA),
    (GptOssRMSNorm, WIDE),
    (Olmo2RMSNorm, WIDE),
    (GemmaRMSNorm, GEMMA),
    (Gemma3RMSNorm, GEMMA),
    (Qwen3NextRMSNorm, GEMMA),
]
PAIRS = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.float32),
]


@pytest.mark.parametrize(("kind", "form"), CLASSES)
@pytest.mark.parametrize(("input_dtype", "weight_dtype"), PAIRS)
def test_same_bits_as_stock(kind, form, input_dtype, weight_dtype):
    torch.manual_seed(fresh_seed())
    for width, eps in ((1, 1e-6), (37, 1e-5), (512, 1e-2)):
        stock = kind(width, eps=eps).to(weight_dtype)
        stock.weight.data = torch.randn(width).to(weight_dtype)
        operator = loaded("norm.torch", stock, weight_dtype)
        assert operator.form == form
        for shape in ((4, width), (2, 3, 5, width), (0, width)):
            x = (torch.randn(shape) * 10 ** torch.randn(()).item()).to(input_dtype)
            expected, actual = stock(x), operator(x)
            assert actual.dtype == expected.dtype
            assert torch.equal(actual, expected)
    assert list(operator.state_dict()) == ["weight"]


class Base(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = 1e-6


class Centred(Base):
    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


class RightInFloat32Only(Base):
    """Takes its mean in the input's dtype: other bits in half precision."""

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


class HiddenEps(LlamaRMSNorm):
    def forward(self, hidden_states):
        return self.weight * (hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + 1e-3))


class Clipped(LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states.clamp(-100, 100))


class Failing(Base):
    def forward(self, x):
        raise ValueError("not today")


@pytest.mark.parametrize(
    ("module", "clause"),
    [
        (nn.LayerNorm(8), "bias"),
        (CohereLayerNorm(8), "neither"),
        (Centred(), "neither"),
        (RightInFloat32Only(), "neither"),
        (HiddenEps(16), "neither"),
        (Clipped(16), "neither"),
        (T5LayerNorm(16), "neither"),  # it differs for bfloat16 inputs with a float32 weight only
        (Failing(), "neither"),
        (Qwen3NextRMSNormGated(8), "more than one tensor"),
        (nn.RMSNorm(8, elementwise_affine=False), "no weight"),
        (nn.Linear(4, 4, bias=False), "no weight vector"),
    ],
)
def test_refuses_what_it_does_not_compute(module, clause):
    assert clause in refusal("norm.torch", module)


def test_from_module_refuses_too():
    from support.operator_rig import context_for

    with pytest.raises(UnsupportedError, match=r"layers\.3: Centred"):
        TorchNorm.from_module(Centred(), OperatorConfig(), context_for(Centred(), "layers.3"))


def test_verdicts_belong_to_settings_not_only_to_classes():
    """The same class with another eps is another function; both verdicts stay right in any order."""
    loose, tight = LlamaRMSNorm(24, eps=1e-1), LlamaRMSNorm(24, eps=1e-6)
    x = torch.randn(3, 24) * 1e-2
    for stock in (loose, tight, loose):
        assert torch.equal(loaded("norm.torch", stock)(x), stock(x))


def test_probing_works_while_defaults_point_elsewhere():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            stock = Gemma3RMSNorm(51)
            assert refusal("norm.torch", stock) is None
    finally:
        torch.set_default_dtype(default)
