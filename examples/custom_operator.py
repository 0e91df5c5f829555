"""An operator of your own: gate and up projection as one product, in every MLP, put there by a rule.

python examples/custom_operator.py [MODEL]
"""

import sys
from dataclasses import dataclass

import torch
from torch.nn import functional

import ktitan


@dataclass(frozen=True)
class FusedMlpConfig(ktitan.OperatorConfig):
    """Kwargs that a rule may give."""

    split_first: bool = False  # [up; gate] instead of [gate; up]: the same result in another order


@ktitan.register_operator("mlp.fused")
class FusedMlp(ktitan.Operator):
    """down(act(gate(x)) * up(x)) with gate and up [2I, H] in one matrix."""

    Config = FusedMlpConfig

    def __init__(self, act, hidden, inner, dtype, device, split_first):
        super().__init__()
        self.act = act
        self.device = device
        self.split_first = split_first
        self.gate_up = torch.nn.Parameter(torch.empty(2 * inner, hidden, dtype=dtype), requires_grad=False)
        self.down = torch.nn.Parameter(torch.empty(hidden, inner, dtype=dtype), requires_grad=False)

    @classmethod
    def supports(cls, context, config):
        names = {name for name, _ in context.module.named_parameters()}
        wanted = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}
        return None if names == wanted else f"its parameters are {sorted(names)}"

    @classmethod
    def from_module(cls, module, config, context):
        inner, hidden = module.gate_proj.weight.shape
        return cls(module.act_fn, hidden, inner, module.gate_proj.weight.dtype, context.device, config.split_first)

    def load(self, weights):
        halves = [weights.tensor("gate_proj.weight"), weights.tensor("up_proj.weight")]
        if self.split_first:
            halves.reverse()
        self.gate_up = torch.nn.Parameter(torch.cat(halves).to(self.device), requires_grad=False)
        down = weights.tensor("down_proj.weight", device=self.device)
        self.down = torch.nn.Parameter(down, requires_grad=False)

    def forward(self, x):  # [..., H] -> [..., H]
        gate, up = functional.linear(x, self.gate_up).chunk(2, dim=-1)
        if self.split_first:
            gate, up = up, gate
        return functional.linear(self.act(gate) * up, self.down)


RULES = {
    "version": 1,
    "rules": [
        {"match": {"class": name}, "replace": {"class": "mlp.fused"}, "optional": True}
        for name in ("LlamaMLP", "Qwen2MLP", "Qwen3MLP", "MistralMLP", "DeepseekV3MLP")
    ],
}


def main(model_name: str = "demo") -> None:
    model, tokenizer = ktitan.load(model_name, rules=RULES)
    replaced = [row.path for row in model.ktitan.plan.rows if row.operator == "mlp.fused"]
    if not replaced:
        raise SystemExit("none of the MLP classes in RULES is in this model; add its class")
    print(f"{len(replaced)} MLPs replaced, the first at {replaced[0]}")
    print("".join(ktitan.stream(model, tokenizer, "Once upon a time", max_new_tokens=24, greedy=True)))


if __name__ == "__main__":
    main(*sys.argv[1:2])
