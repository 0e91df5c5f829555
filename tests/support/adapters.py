"""PEFT adapters of random numbers, and the dense models that they amount to."""

import copy
import json
import math

import torch
from safetensors.torch import save_file


def pair_name(path, half):
    return f"base_model.model.{path}.lora_{half}.weight"


def random_tensors(sizes, rank=4, seed=0):
    """A and B of each path, as they are stored; `sizes` gives (in, out), or (in, out, rank)."""
    rng = torch.Generator().manual_seed(seed)
    tensors = {}
    for path, (inputs, outputs, *own) in sizes.items():
        r = own[0] if own else rank
        tensors[pair_name(path, "A")] = torch.randn(r, inputs, generator=rng) * 0.2
        tensors[pair_name(path, "B")] = torch.randn(outputs, r, generator=rng) * 0.2
    return tensors


def write_adapter(folder, tensors, rank=4, alpha=10, **config):
    """Write both files; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "bias": "none",
        "base_model_name_or_path": "a/base",
    }
    (folder / "adapter_config.json").write_text(json.dumps({**settings, **config}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def sizes_of(model, *endings):
    """(in, out) of every linear module of `model` whose path ends so."""
    found = {}
    for path, module in model.named_modules():
        if path.endswith(endings):
            weight = module.weight
            found[path] = (weight.shape[1], weight.shape[0])
    return found


def merged(model, tensors, scaling):
    """A copy of the stock model with W + scaling B A; `scaling` is a number, or a function of (path, rank)."""
    twin = copy.deepcopy(model)
    for name in tensors:
        if not name.endswith("lora_A.weight"):
            continue
        path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        a, b = tensors[name].float(), tensors[pair_name(path, "B")].float()
        factor = scaling(path, len(a)) if callable(scaling) else scaling
        with torch.no_grad():
            twin.get_submodule(path).weight += factor * (b @ a)
    return twin


def by_root(alpha):
    """Scaling with use_rslora."""
    return lambda path, rank: alpha / math.sqrt(rank)
