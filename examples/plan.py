"""What would become of a model here? Answered from its config and headers, before any weight byte is read.

python examples/plan.py [MODEL] [BUDGET]        e.g.  python examples/plan.py demo ram=4GiB
"""

import sys
from collections import Counter

import ktitan


def main(model_name: str = "demo", budget: str | None = None) -> None:
    plan = ktitan.plan_model(model_name, budget=budget)
    print(plan.summary())
    for (operator, kept_as, device), count in Counter((r.operator, r.format, r.device) for r in plan.rows).items():
        print(f"  {count:4d} x {operator} ({kept_as}) on {device}")
    try:
        plan.check()
    except ktitan.KtitanError as error:
        print(error)
        raise SystemExit(2) from None
    print("it fits")


if __name__ == "__main__":
    main(*sys.argv[1:3])
