import pytest
import torch
from torch import nn
from transformers.models.bart.modeling_bart import BartScaledWordEmbedding
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

from support.operator_rig import fresh_seed, loaded, meta_twin, refusal

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def same_bits(stock, dtype):
    torch.manual_seed(fresh_seed())
    stock = stock.to(dtype)
    operator = loaded("embedding.torch", stock, dtype)
    for shape in ((3, 7), (1,), (0,), (2, 0)):
        ids = torch.randint(0, stock.num_embeddings, shape)
        assert torch.equal(operator(ids), stock(ids))
    assert list(operator.state_dict()) == ["weight"]
    return operator


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain(dtype):
    assert same_bits(nn.Embedding(31, 17, padding_idx=2), dtype).scale is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [BartScaledWordEmbedding, Gemma3TextScaledWordEmbedding])
def test_scaled(kind, dtype):
    assert same_bits(kind(31, 24, 0, embed_scale=8.0), dtype).scale == 8.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scale_that_must_be_rounded_first(dtype):
    """50.596 is no bfloat16 number: Gemma rounds it before the product, BART after, and the bits differ."""
    same_bits(Gemma3TextScaledWordEmbedding(31, 24, 0, embed_scale=2560**0.5), dtype)
    reason = refusal("embedding.torch", BartScaledWordEmbedding(31, 24, 0, embed_scale=2560**0.5))
    assert reason == "BartScaledWordEmbedding does not compute rows times embed_scale in torch.bfloat16"


def test_scale_is_found_though_its_buffer_is_on_meta():
    stock = Gemma3TextScaledWordEmbedding(31, 24, 0, embed_scale=3.7)
    assert meta_twin(stock).embed_scale.is_meta
    assert loaded("embedding.torch", stock).scale == pytest.approx(3.7)


class Shifted(nn.Embedding):
    embed_scale = 2.0

    def forward(self, input):
        return super().forward(input) * self.embed_scale + 1e-3


class Nameless(nn.Embedding):
    def forward(self, input):
        return super().forward(input) * 2


class Failing(Shifted):
    def forward(self, input, extra):
        return super().forward(input) * extra


@pytest.mark.parametrize(
    ("module", "clause"),
    [
        (nn.EmbeddingBag(3, 2), "not an nn.Embedding"),
        (nn.Embedding(3, 2, max_norm=1.0), "max_norm"),
        (Shifted(3, 2), "does not compute rows times embed_scale"),
        (Nameless(3, 2), "no embed_scale"),
        (Failing(3, 2), "could not be tried"),
    ],
)
def test_refuses_what_it_does_not_compute(module, clause):
    assert clause in refusal("embedding.torch", module)
