"""Rules of your own over those of a family: the head in float32, everything else as the family's file says.

python examples/custom_rule.py [MODEL]
"""

import sys

import ktitan

# Own rules come first and the first match wins, so what is included only decides what is left.
RULES = """
version: 1
include: [{family}.yaml]
rules:
  - match: {{name: lm_head}}
    replace:
      class: linear.torch
      kwargs: {{dtype: float32}}
"""


def main(model_name: str = "demo") -> None:
    family = ktitan.plan_model(model_name).origin.partition("family ")[2].rstrip(")") or "auto"
    path = "custom_rule.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(RULES.format(family=family))
    model, tokenizer = ktitan.load(model_name, rules=path)
    head = next(row for row in model.ktitan.plan.rows if row.path == "lm_head")
    print(f"lm_head: {head.operator} by {head.rule}, {model.lm_head.weight.dtype}")
    print("".join(ktitan.stream(model, tokenizer, "Rules are", max_new_tokens=16, greedy=True)))


if __name__ == "__main__":
    main(*sys.argv[1:2])
