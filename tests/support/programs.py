"""Injected models with their step programs, and the same steps by their modules."""

import torch

import ktitan
from ktitan.context import step
from ktitan.engine.cache import KtitanCache
from ktitan.engine.generate import cache_keyword
from ktitan.engine.kv_native import NativeKVPool
from ktitan.program import StepProgram, build_program

# Every module by its .cpu operator, also where weights are plain floats.
CPU = {
    "version": 1,
    "rules": [
        {"match": {"name": r".*\.kv_b_proj"}, "replace": {"class": "linear.torch"}, "optional": True},
        {"match": {"class": "torch.nn.Linear"}, "replace": {"class": ["linear.cpu", "linear.torch"]}},
        {"match": {"class": "torch.nn.Embedding"}, "replace": {"class": "embedding.cpu"}},
        {"match": {"name": r".*\.experts"}, "replace": {"class": ["experts.cpu", "experts.torch"]}, "optional": True},
        {"match": {"name": r".*norm"}, "replace": {"class": "norm.cpu"}},
        {"match": {"name": r".*\.self_attn"}, "replace": {"class": "attention.cpu"}},
        {
            "match": {"name": r".*\.(mlp|shared_experts?)"},
            "replace": {"class": ["moe.cpu", "mlp.cpu"]},
            "optional": True,
        },
    ],
}
# The same with weights that stay in their files.
STREAMED = {
    "version": 1,
    "rules": [
        CPU["rules"][0],
        {
            "match": {"class": "torch.nn.Linear"},
            "replace": {"class": ["linear.streamed", "linear.cpu", "linear.torch"]},
        },
        {"match": {"class": "torch.nn.Embedding"}, "replace": {"class": "embedding.streamed"}},
        {"match": {"name": r".*\.experts"}, "replace": {"class": "experts.streamed"}, "optional": True},
        *CPU["rules"][4:],
    ],
}


def native_cache(model):
    """An empty cache on native pages."""
    return KtitanCache(config=model.config, pool=NativeKVPool())


def program_of(model, check=True):
    """The program of a loaded model; fails with the reason where there is none."""
    program = build_program(model, lambda: native_cache(model), check)
    assert isinstance(program, StepProgram), program.reason
    return program


def module_logits(model, ids, cache):
    """ids [T] -> logits [1, V] by the modules."""
    start, tokens = cache.get_seq_length(), len(ids)
    positions = torch.arange(start, start + tokens)[None]
    with torch.inference_mode(), step(cache.step_context(tokens)):
        return model(input_ids=ids[None], position_ids=positions, **{cache_keyword(model): cache}).logits[:, -1]


def random_ids(model, tokens, seed):
    """Token ids [tokens]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, model.config.get_text_config().vocab_size, (tokens,), generator=generator)


def assert_same_steps(model, program, ids, cuts):
    """Run ids [S] in steps that end at `cuts`, both ways, and compare every logit; returns the two caches."""
    by_modules, by_program = native_cache(model), native_cache(model)
    for first, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        expected = module_logits(model, ids[first:end], by_modules)
        found = program.run(ids[first:end], by_program)
        assert torch.equal(found, expected), (first, end, float((found - expected).abs().max()))
        assert by_program.get_seq_length() == end
    return by_modules, by_program


def kinds(program):
    """The kinds of the native operations, in order."""
    return [operation.kind for operation in program.native.operations]


def load(path, rules=CPU, **options):
    """A model on the CPU."""
    return ktitan.load(path, rules=rules, device="cpu", dtype="float32", **options)[0]


def on_cpu(model, rules=CPU, **options):
    """A model with real tensors, injected."""
    return ktitan.optimize_and_load(model, rules, device="cpu", **options)
