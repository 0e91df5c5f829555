"""A process that streams a model and says as JSON what it took: run as a program, so that its peak is its own.

PYTHONPATH=.:tests python -P -m support.stream_program MODEL [--ram BYTES | --share SHARE | --resident] [--tokens N]
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch

import ktitan

from support.streaming import cache_of, rules

# Tokens of one answer; longer runs are several answers.
ANSWER = 500


def status(field):
    """A number of /proc/self/status, in bytes. VmHWM counts from exec on; ru_maxrss would begin with the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def read_bytes():
    """What the kernel fetched from drives for this process."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def descriptors():
    """Open file descriptors."""
    return len(os.listdir("/proc/self/fd"))


def digest(*tensors):
    """One hash of the bits of some tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def load(given):
    """The model by the options, and what `cache_of` says of its store, or None."""
    options = {"device": "cpu", "context": given.context}
    if given.resident:
        return ktitan.load(given.model, rules=rules("cpu"), **options)[0], None
    if given.ram:
        options["budget"] = f"ram={given.ram}"
    with cache_of(given.share) as opened:
        model, _ = ktitan.load(given.model, rules=rules("streamed"), **options)
    return model, opened[0]


def answer(model, seed, tokens):
    """Greedy tokens after a fresh prompt; every answer starts anew."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, model.config.vocab_size, (1, 16), generator=generator)
    new = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    return new[0, ids.shape[1] :]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--ram", type=int, help="the public budget")
    parser.add_argument("--share", type=float, help="cache as a share of what is streamed, whatever the budget")
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--prompts", type=int, nargs="*", default=[1, 7, 513])
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, opened = load(given)
    store = opened.store if opened else None
    report = {"loaded_rss": status("VmRSS"), "samples": []}
    generator = torch.Generator().manual_seed(1)
    prompts = [(1, length) for length in given.prompts] + ([(2, 7)] if given.prompts else [])
    with torch.inference_mode():
        report["logits"] = [
            digest(model(torch.randint(3, model.config.vocab_size, size, generator=generator)).logits)
            for size in prompts
        ]
    before, counted, start = read_bytes(), store.stats() if store else {}, time.monotonic()
    said, left, seed = [], given.tokens, 0
    while left > 0:
        said.append(answer(model, seed, min(left, ANSWER)))
        left, seed = left - len(said[-1]), seed + 1
        report["samples"].append([given.tokens - left, status("VmRSS"), descriptors()])
    seconds = time.monotonic() - start
    report |= {
        "greedy": digest(*said),
        "peak_rss": status("VmHWM"),
        "kernel_bytes": read_bytes() - before,
        "tokens_per_second": given.tokens / seconds if seconds else 0.0,
        "before": counted,
        "after": store.stats() if store else {},
        "cache_bytes": opened.cache_bytes if opened else 0,
        "streamed_bytes": opened.need.all_bytes if opened else 0,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
