"""Mutated rule files: grammar-level changes written as YAML, and bytes."""

import torch
import yaml
from fuzz import doors
from fuzz.mutate import deep, mutate_bytes, mutate_value
from transformers import AutoModelForCausalLM

from ktitan.api.planning import plan_injection
from ktitan.errors import RuleError
from ktitan.rules import packaged_folder, parse_rules, parse_text

from support.tiny_models import CONFIGS

WHOLE = r"""version: 1
vars: {gpu: cpu, n: 8}
include: [parts/dense.yaml]
rules:
  - match: {name: 'model\.layers\.(\d+)\.mlp$', class: LlamaMLP, layers: 0-1, not: [{class: Gate}, {name: x}]}
    replace: {class: keep, kwargs: {home: ram, device: "${gpu}"}}
    optional: false
    recursive: true
  - match: {name: 'lm_head|model\.layers\.2\.self_attn\.[qkv]_proj', layers: [0, '2-', 5-7]}
    replace:
      class: &op [linear.cpu, linear.torch]
      kwargs: {dtype: float32, activations: int8}
      prefill: {class: linear.torch, kwargs: {device: cpu}}
  - match: {name: '.*\.mlp\.(gate|up)_proj', layers: 2}
    replace:
      class: *op
"""
WITH_SOURCE = WHOLE + "      source: experts.gguf\n"


def seeds():
    """(texts, a model to plan with)."""
    texts = [WHOLE, WITH_SOURCE, *(path.read_text("utf-8") for path in sorted(packaged_folder().rglob("*.yaml")))]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIGS["llama"](), dtype=torch.float32)
    return texts, model


def text_of(rng, texts):
    """One changed rule file."""
    text, action = rng.choice(texts[:1] * 12 + texts), rng.random()
    if action < 0.5:
        changed = mutate_value(rng, yaml.safe_load(text))
        flow = rng.choice((None, True, False))
        return yaml.safe_dump(changed, default_flow_style=flow, allow_unicode=True, sort_keys=False).encode(
            "utf-8", "replace"
        )
    if action < 0.95:
        return mutate_bytes(rng, text.encode(), (), rng.choice(texts).encode())
    if action < 0.97:
        return deep(b"[", b"", b"]", rng.choice((10, 70, 3000)))
    return bomb(rng)


def bomb(rng):
    """Aliases of aliases."""
    lines = ["a0: &a0 [x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, rng.randint(2, 30))]
    return ("version: 1\n" + "\n".join(lines) + f"\nrules: *a{len(lines) - 1}\n").encode()


def rules_case(rng, stock, folder):
    """Through a file; faults are values here."""
    path = folder / "rules.yaml"
    content = text_of(rng, stock[0])
    path.write_bytes(content)
    parsed = parse_rules(path)
    again = parse_text(content.decode("utf-8", "replace"))
    for fault in (*parsed.faults, *again.faults):
        doors.require(fault.where, fault)
        doors.readable(fault)
    if parsed.faults:
        raise RuleError.from_faults(parsed.faults)


def plan_case(rng, stock, folder):
    """All the way to a checked plan of a tiny model without weights."""
    path = folder / "rules.yaml"
    path.write_bytes(text_of(rng, stock[0]))
    made = plan_injection(stock[1], path, [], device="cpu")
    made.summary()
    made.check()
