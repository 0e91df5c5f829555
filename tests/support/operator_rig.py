"""Tiny random models of many families, and their injection by hand: operators alone, without rules, plan or files."""

import copy
import os

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import ktitan.operators  # noqa: F401  (fills the registry)
from ktitan.errors import WeightError
from ktitan.hardware import Cpu, Hardware, Memory
from ktitan.operator import OperatorContext
from ktitan.registry import operators

HARDWARE = Hardware(Cpu("test", frozenset(), 1, 1, 1), Memory(1 << 34, 1 << 34, None))
VOCABULARY = 97

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2}
_LATENT = {
    **_COMMON,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
_V2 = {**_LATENT, "topk_method": "group_limited_greedy"}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "original_max_position_embeddings": 32}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}

# Family name -> (model_type, config entries).
FAMILIES = {
    "llama": ("llama", {**_GROUPED, "attention_bias": True}),
    "qwen2": ("qwen2", {**_GROUPED, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", {**_GROUPED, **_ALTERNATING, "head_dim": 12, "attn_logit_softcapping": 3.0}),
    "gemma3": ("gemma3_text", {**_GROUPED, **_ALTERNATING, "head_dim": 12, "query_pre_attn_scalar": 20}),
    "mixtral": ("mixtral", {**_GROUPED, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2_moe": ("qwen2_moe", {**_GROUPED, "num_experts": 6, "moe_intermediate_size": 24, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        {**_GROUPED, "head_dim": 12, "num_experts": 6, "moe_intermediate_size": 24, "num_experts_per_tok": 3},
    ),
    "olmoe": ("olmoe", {**_GROUPED, "num_experts": 7, "num_experts_per_tok": 3, "clip_qkv": 0.7}),
    "gpt_oss": (
        "gpt_oss",
        {**_GROUPED, **_ALTERNATING, "head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2}
        | {"rope_parameters": {**_YARN, "factor": 8.0, "truncate": False}},
    ),
    "deepseek_v2": ("deepseek_v2", {**_V2, "q_lora_rank": None}),
    "deepseek_v2_yarn": (
        "deepseek_v2",
        {**_V2, "q_lora_rank": 14}
        | {"rope_parameters": {**_YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707}},
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {**_LATENT, "q_lora_rank": 20}
        | {"rope_parameters": {**_YARN, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "deepseek_v3_plain": ("deepseek_v3", {**_LATENT, "q_lora_rank": None, "rope_interleave": False}),
}


def fresh_seed():
    """A new seed each run; pytest shows it when a test fails."""
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    return seed


def tiny_config(family, **changes):
    """The config of a family, with changes on top."""
    model_type, entries = FAMILIES[family]
    return AutoConfig.for_model(model_type, **{**entries, **changes})


def randomize(module, generator, spread=1.0):
    """Weights of a size at which every part of the module matters."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                offset = 0.0 if bool((parameter == 0).all()) else 1.0
                parameter.copy_(offset + 0.2 * noise)
            elif parameter.dim() == 1 or name.endswith("_bias"):
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(spread * noise / parameter.shape[-1] ** 0.5)
        for name, buffer in module.named_buffers():
            if "correction_bias" in name:
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
    return module


def tiny_model(family, seed, dtype=torch.float32, **changes):
    """A stock model with random weights, in eval mode."""
    model = AutoModelForCausalLM.from_config(tiny_config(family, **changes), dtype=dtype)
    return randomize(model, torch.Generator().manual_seed(seed)).eval()


def context_for(module, path="layer.module", dtype=torch.float32, device="cpu"):
    """The context of a module that stands at `path`."""
    return OperatorContext(path, module, torch.device(device), "ram", dtype, HARDWARE)


class StateWeights:
    """ModuleWeights over the tensors of a real module."""

    def __init__(self, module, own_only=False):
        self.state = {k: v for k, v in module.state_dict().items() if not own_only or "." not in k}
        self.asked = []

    def names(self):
        return list(self.state)

    def shape(self, name):
        return tuple(self.state[name].shape)

    def formats(self, name):
        return (str(self.state[name].dtype).removeprefix("torch."),)

    def stored_bytes(self, name):
        return self.state[name].numel() * self.state[name].element_size()

    def tensor(self, name, dtype=None, device="cpu"):
        self.asked.append(name)
        if name not in self.state:
            raise WeightError(f"no source fills {name}")
        return self.state[name].detach().to(device, dtype or self.state[name].dtype, copy=True)


def meta_twin(module):
    """A copy of a real module whose tensors are on meta, as the planner sees it."""
    return copy.deepcopy(module).to("meta")


def refusal(name, module):
    """The reason of operator `name` against `module`, or None."""
    kind = operators.get(name)
    return kind.supports(context_for(module), kind.Config())


def loaded(name, module, dtype=torch.float32, path="layer.module", config=None):
    """Operator `name` in the place of a real module, built from its shapes and loaded with its tensors."""
    kind = operators.get(name)
    config = config or kind.Config()
    stock = module if kind.keeps_children else meta_twin(module)
    context = context_for(stock, path, dtype)
    reason = kind.supports(context, config)
    assert reason is None, reason
    operator = kind.from_module(stock, config, context)
    operator.load(StateWeights(module, own_only=kind.keeps_children))
    assert not any(t.is_meta for t in [*operator.parameters(), *operator.buffers()])
    return operator.eval()


def operator_name(module, dtype):
    """The operator of this catalogue for a module of a model, or None to keep it."""
    name = type(module).__name__
    if dtype is torch.float32 and hasattr(module, "experts"):
        return "moe.cpu"
    if dtype is torch.float32 and name.endswith("MLP"):
        return "mlp.cpu"
    if name.endswith("Attention"):
        return "attention.torch"
    if name.endswith("Experts"):
        return "experts.torch"
    if "RMSNorm" in name:
        return "norm.torch"
    if isinstance(module, nn.Embedding):
        return "embedding.torch"
    return "linear.torch" if type(module) is nn.Linear else None


ON_CPU = {"attention.torch": "attention.cpu", "norm.torch": "norm.cpu"}


def injected(reference, dtype=torch.float32, only=None, swapped=None):
    """A copy of `reference` built on meta, in which every module that has an operator is replaced and then loaded.

    Args:
        reference: the stock model.
        dtype: of the copy.
        only: names of `operator_name`; None: all.
        swapped: operators to take instead, by those names.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(reference.config), dtype=dtype)
    built = []
    for path, module in list(model.named_modules()):
        name = operator_name(module, dtype)
        if name is None or (only is not None and name not in only):
            continue
        kind = operators.get((swapped or {}).get(name, name))
        config, context = kind.Config(), context_for(module, path, dtype)
        reason = kind.supports(context, config)
        assert reason is None, f"{path}: {reason}"
        operator = kind.from_module(module, config, context)
        model.set_submodule(path, operator)
        built.append((path, operator))
    for path, operator in built:
        operator.load(StateWeights(reference.get_submodule(path), own_only=operator.keeps_children))
    _fill_the_rest(model, reference)
    model.tie_weights()
    model.eval()
    for _, operator in built:
        operator.self_check()
    return model


def _fill_the_rest(model, reference):
    """Kept modules (routers, rotary embeddings) get the reference's tensors."""
    for path, module in model.named_modules():
        for table in ("_parameters", "_buffers"):
            for name, tensor in getattr(module, table).items():
                if tensor is not None and tensor.is_meta:
                    stock = getattr(reference.get_submodule(path), table)[name].detach().clone()
                    getattr(module, table)[name] = nn.Parameter(stock, False) if table == "_parameters" else stock
    assert not any(t.is_meta for t in [*model.parameters(), *model.buffers()])


def random_ids(rows, tokens, generator):
    """Token ids [rows, tokens] without the special ones."""
    return torch.randint(3, VOCABULARY, (rows, tokens), generator=generator)


def padded_batch(tokens, padding, generator):
    """Two rows, the second padded on the left: input ids and mask."""
    ids = random_ids(2, tokens, generator)
    mask = torch.ones_like(ids)
    ids[1, :padding] = 0
    mask[1, :padding] = 0
    return {"input_ids": ids, "attention_mask": mask}


def relative_difference(actual, expected):
    """Largest difference over the largest expected number."""
    assert actual.shape == expected.shape
    return float((actual.double() - expected.double()).abs().max() / expected.double().abs().max())
