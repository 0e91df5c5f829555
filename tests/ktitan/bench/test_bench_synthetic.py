from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ktitan
from ktitan.bench.synthetic import Shape, write_model
from ktitan.cli.main import app
from ktitan.errors import UnsupportedError

SMALL = Shape(
    layers=3, hidden=256, heads=4, kv_heads=2, head_dim=64, experts=32, chosen=4, intermediate=256, vocabulary=600
)


def distinct_experts(path, tokens=256):
    """How many of the experts the last layer uses for random tokens, and the most frequent one's share."""
    model, _ = ktitan.load(path)
    seen = []
    experts = model.model.layers[-1].mlp.experts
    experts.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[1]))
    with torch.inference_mode():
        logits = model(input_ids=torch.randint(3, 600, (1, tokens)), use_cache=False).logits
    assert logits.isfinite().all()
    counts = torch.bincount(seen[0].flatten(), minlength=SMALL.experts)
    return int((counts > 0).sum()), float(counts.max() / counts.float().mean())


def test_routing_is_near_uniform_when_asked_for(tmp_path):
    write_model(tmp_path / "uniform.gguf", replace(SMALL, uniform=True), seed=int(np.random.default_rng().integers(99)))
    distinct, most = distinct_experts(tmp_path / "uniform.gguf")
    assert distinct == SMALL.experts and most < 3


@pytest.mark.parametrize("kind", ["q4_k", "q8_0"])
def test_a_dense_model_is_a_llama(tmp_path, kind):
    path = tmp_path / "dense.gguf"
    write_model(path, replace(SMALL, experts=0, format=kind))
    model, tokenizer = ktitan.load(path)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert tokenizer.decode(tokenizer("cache")["input_ids"]) == "cache"
    blocks = gguf.GGUFReader(path).get_tensor(0).data
    values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind.upper()])
    assert values.std() == pytest.approx(1, rel=0.05) and abs(values.mean()) < 0.02
    assert [entry.name for entry in tmp_path.iterdir()] == ["dense.gguf"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "q9"}, "no blocks of 'q9'"),
        ({"hidden": 200}, "no multiples of 256"),
        ({"vocabulary": 256}, "256 tokens"),
        ({"vocabulary": 65793}, "65793 tokens"),
    ],
)
def test_sizes_that_cannot_be(tmp_path, change, message):
    with pytest.raises(UnsupportedError, match=message):
        write_model(tmp_path / "x.gguf", replace(SMALL, **change))
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_wrote_and_overwrites_nothing(tmp_path):
    out = tmp_path / "m.gguf"
    small = ["--layers", "1", "--hidden", "256", "--experts", "2", "--intermediate", "256", "--vocabulary", "300"]
    first = CliRunner().invoke(app, ["bench", "make", str(out), *small])
    assert first.exit_code == 0 and f"wrote {out}" in first.stderr
    before = out.read_bytes()
    again = CliRunner().invoke(app, ["bench", "make", str(out), *small, "--seed", "9"])
    assert again.exit_code == 2 and "is there already" in again.stderr
    assert out.read_bytes() == before
