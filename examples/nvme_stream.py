"""Run a mixture of experts whose experts stay on the drive, in less RAM than it takes.

python examples/nvme_stream.py [MODEL] [RAM]

MODEL is a folder or a .gguf file with routed experts; RAM is what the program may plan with, e.g. 28MiB.
"""

import sys
from pathlib import Path

import ktitan

TINY = Path(__file__).parent / "models" / "tiny-dsv3.Q4_K_M.gguf"

RULES = {
    "version": 1,
    "include": ["auto.yaml"],  # linear layers and embeddings: in RAM, as they are stored
    "rules": [{"match": {"name": r".*\.mlp\.experts"}, "replace": {"class": "experts.streamed"}}],
}


def main(model_name: str = str(TINY), ram: str = "28MiB") -> None:
    model, tokenizer = ktitan.load(model_name, rules=RULES, budget=f"ram={ram}", device="cpu", context=256)
    print(model.ktitan.plan.summary(), file=sys.stderr)
    for piece in ktitan.stream(model, tokenizer, "The best way to learn", max_new_tokens=48, greedy=True):
        print(piece, end="", flush=True)
    print()

    store = model.ktitan.stats()["store"]
    share = 100 * store["hits"] / store["demands"]
    read = store["io"]["read_bytes"] / 2**20
    print(f"experts: {store['demands']} asked for, {share:.0f} % were in the cache, {read:.1f} MiB read from the drive")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except ktitan.KtitanError as error:
        sys.exit(str(error))
