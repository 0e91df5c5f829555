"""A prompt in a process of its own: prints the bytes that loading and running a model added at most, and its plan's.

Usage: peak_program.py TOKENS. The model is a Llama of four layers, whose keys, values and weights outweigh what an
allocator wastes.
"""

import ctypes
import gc
import json
import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import ktitan
from ktitan.engine.generate import generate_tokens

torch.set_num_threads(1)
SIZES = {"vocab_size": 12288, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 1 << 15}


def status(name):
    """Bytes of a line of /proc/self/status."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def loaded(context, **options):
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, **HEADS), dtype=torch.float32)
    return ktitan.optimize_and_load(model, "auto", context=context, **options)


def prompt(tokens):
    return torch.randint(3, 999, (tokens,))


def main(tokens):
    first = loaded(1024)
    list(generate_tokens(first, prompt(600), max_new_tokens=2))  # whatever is loaded or made once
    del first
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # the peak counts from now on
    model = loaded(tokens + 2)
    plan = model.ktitan.plan
    model.ktitan.kv_allowance.limit_bytes = plan.parts["ram"]["kv"]  # as with a budget that leaves no more
    list(generate_tokens(model, prompt(tokens), max_new_tokens=2))
    print(json.dumps({"took": status("VmHWM") - before, "planned": plan.totals["ram"], "parts": plan.parts["ram"]}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
