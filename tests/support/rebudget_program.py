"""A process that answers while its budget goes down by half and up again, and says as JSON what it held.

PYTHONPATH=.:tests python -P -m support.rebudget_program MODEL [GROUP]
"""

import json
import sys
import time
from pathlib import Path

import torch

import ktitan
from ktitan.engine.generate import generate_tokens

from support.streaming import rules


def held(group):
    """Bytes of this process, and of its memory group (v1), where it has one to itself."""
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    rss = next(int(line.split()[1]) << 10 for line in rollup if line.startswith("Rss:"))
    return rss, usage(Path(group)) if group else None


def usage(group):
    """What is charged to a group but for the page cache, which is the kernel's to keep."""
    lines = (group / "memory.stat").read_text().splitlines()
    cache = next(int(line.split()[1]) for line in lines if line.startswith("total_cache "))
    return int((group / "memory.usage_in_bytes").read_text()) - cache


def main():
    torch.set_num_threads(1)
    model, group = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    model, _ = ktitan.load(model, rules=rules("streamed"), device="cpu", context=256)
    handle, prompt = model.ktitan, torch.arange(3, 40)
    full = handle.plan.totals["ram"]
    half = full - handle.plan.cache_bytes // 2
    expected = list(generate_tokens(model, prompt, max_new_tokens=24))  # all of the cache is used once
    while handle.store_stats()["filled_bytes"] < handle.store_stats()["arena_bytes"]:
        time.sleep(0.01)
    said, samples = [], {}
    for token in generate_tokens(model, prompt, max_new_tokens=24):
        said.append(token)
        if len(said) == 6:
            samples["full"] = held(group)
            handle.rebudget(f"ram={half}")
        if len(said) == 8:
            samples["half"] = held(group)
            samples["half_arena"] = handle.store_stats()["arena_bytes"]
        if len(said) == 14:
            handle.rebudget(f"ram={full}")
    while handle.store_stats()["filled_bytes"] < handle.store_stats()["arena_bytes"]:
        time.sleep(0.01)
    samples["again"] = held(group)
    samples["arena"] = handle.store_stats()["arena_bytes"]
    print(json.dumps({"same": said == expected, "difference": full - half, **samples}))


if __name__ == "__main__":
    main()
