"""Adapters and figures where modules compute on a real GPU."""

import pytest
import torch

import ktitan
from ktitan.verify import verify_model

from support.adapters import merged, random_tensors, sizes_of, write_adapter
from support.tiny_models import on_meta, random_ids, save_tiny

pytestmark = pytest.mark.gpu

TOLERANCE = 1e-3  # float32 on the GPU sums in another order


def placed(path, device):
    return {"match": {"name": path}, "replace": {"class": "keep", "kwargs": {"device": device}}}


@pytest.mark.parametrize("hopping", [r"model\.layers\.1\.mlp\.down_proj", r"model\.layers\.[12]", "model"])
def test_an_adapter_computes_where_its_module_does(tmp_path, hopping):
    stock = save_tiny("llama", tmp_path / "model", seed=3)
    tensors = random_tensors(sizes_of(stock, "q_proj", "down_proj", "lm_head"), seed=5)
    lora = write_adapter(tmp_path / "adapter", tensors)
    entries = [placed(hopping, "cuda:0"), *([] if hopping == "model" else [placed("model", "cpu")])]
    rules = {"version": 1, "rules": [*entries, placed("lm_head", "cpu")]}
    model = ktitan.optimize_and_load(on_meta(tmp_path / "model"), rules, weights=tmp_path / "model", lora=lora)
    ids = random_ids(2, 13)
    with torch.no_grad():
        found, expected = model(ids.to(model.device)).logits.cpu(), merged(stock, tensors, 10 / 4)(ids).logits
    assert (found - expected).abs().max() < TOLERANCE


def test_figures_on_the_gpu_are_those_of_the_cpu(tmp_path):
    save_tiny("llama", tmp_path, seed=3)
    ids = random_ids(2, 40, seed=6)
    here = verify_model(tmp_path, ids=ids, device="cpu")
    there = verify_model(tmp_path, "stock", ids=ids, device="cuda:0", against_device="cpu", chunk_tokens=9)
    assert there.nll == pytest.approx(here.nll, rel=1e-4)
    assert there.reference_nll == pytest.approx(here.nll, rel=1e-5)
    assert there.kld < 1e-5
