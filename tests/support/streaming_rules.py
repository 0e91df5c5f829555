"""Rules that stream everything that can be, and the same ones with weights in RAM."""

from ktitan.tiers import Budget


def rules(place, dense=True):
    """Rules by which experts, linears and embeddings are `.cpu` or `.streamed`; all else stays stock.

    Args:
        place: "cpu" or "streamed".
        dense: also linears and embeddings; else those are in RAM.
    """
    other = place if dense else "cpu"
    return {
        "version": 1,
        "rules": [
            {"match": {"name": r".*\.experts"}, "replace": {"class": f"experts.{place}"}, "optional": True},
            {"match": {"class": "torch.nn.Linear"}, "replace": {"class": [f"linear.{other}", "linear.torch"]}},
            {"match": {"class": "torch.nn.Embedding"}, "replace": {"class": f"embedding.{other}"}},
        ],
    }


def budget(plan, share=None):
    """The RAM in which the streams of `plan` have this share of what keeps all of them; None: the least that works."""
    other = plan.totals["ram"] - plan.cache_bytes
    room = plan.cache.least_bytes if share is None else int(share * plan.cache.all_bytes)
    return Budget(ram_bytes=other + max(room, plan.cache.least_bytes))
