"""Programs against the module path: equal bits, however a prompt is cut."""

import pytest
import torch

import ktitan
from ktitan.engine.cache import KtitanCache
from ktitan.engine.kv_native import NativeKVPool

from support.operator_rig import FAMILIES, fresh_seed
from support.operator_rig import tiny_model as random_model
from support.packed_models import CONFIGS, write_packed
from support.programs import (
    STREAMED,
    assert_same_steps,
    kinds,
    load,
    module_logits,
    native_cache,
    on_cpu,
    program_of,
    random_ids,
)
from support.streaming import cache_of

CUTS = (30, 69, 70, 71, 72)


@pytest.mark.parametrize("family", list(CONFIGS))
def test_quantised(family, tmp_path):
    seed = fresh_seed()
    path = tmp_path / "model.gguf"
    write_packed(path, family, "q4_k", seed % 1000)
    model = ktitan.load(path, device="cpu")[0]
    program = program_of(model)
    # This one has a single row of plain floats.
    assert all(path.endswith("shared_expert_gate") for path in program.reasons), program.reasons
    assert_same_steps(model, program, random_ids(model, 75, seed), CUTS)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("gemma2", "olmoe")])
def test_plain_floats(family):
    """Every module by a .cpu operator, also in families that no GGUF is written of here."""
    seed = fresh_seed()
    model = on_cpu(random_model(family, seed))
    program = program_of(model)
    assert_same_steps(model, program, random_ids(model, 75, seed), CUTS)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_streamed(family, share, tmp_path):
    seed = fresh_seed()
    path = tmp_path / "model.gguf"
    write_packed(path, family, "q4_k", seed % 1000)
    with cache_of(share):
        model = load(path, STREAMED)
    program = program_of(model)
    assert not program.reasons, program.reasons
    assert {"stream_linear", "stream_rows"} <= set(kinds(program))
    assert ("stream_experts" in kinds(program)) == (family != "llama")
    assert_same_steps(model, program, random_ids(model, 75, seed), CUTS)
    # And those of the resident model.
    resident = load(path)
    assert torch.equal(
        module_logits(resident, random_ids(resident, 75, seed), native_cache(resident)),
        program.run(random_ids(model, 75, seed), native_cache(model)),
    )
    assert model.ktitan.store_stats()["demands"] > 0
    model.ktitan.undo()


@pytest.mark.parametrize("format", ["bf16", "q8"])
def test_rounded_pages(format):
    """Both ways read what the pages hold."""
    seed = fresh_seed()
    model = on_cpu(random_model("qwen3_moe", seed, head_dim=32))
    caches = [KtitanCache(config=model.config, pool=NativeKVPool(format=format)) for _ in range(2)]
    program, ids = program_of(model), random_ids(model, 75, seed)
    for part in ids.split([30, 40, 1, 4]):
        assert torch.equal(program.run(part, caches[0]), module_logits(model, part, caches[1]))


def test_two_sequences_in_turn():
    seed = fresh_seed()
    model = on_cpu(random_model("llama", seed))
    program, ids = program_of(model), random_ids(model, 60, seed)
    alone = [program.run(part, native_cache(model)) for part in ids.split(20)]
    pool = NativeKVPool()
    shared = [KtitanCache(config=model.config, pool=pool) for _ in range(3)]
    for at in (0, 7):
        found = [
            program.run(part[at : 7 if at == 0 else 20], cache)
            for part, cache in zip(ids.split(20), shared, strict=True)
        ]
    assert all(torch.equal(*pair) for pair in zip(alone, found, strict=True))
