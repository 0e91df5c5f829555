"""Time a token against length, and memory against the plan, for a long prompt by the step program; by hand.

python -P tools/check_length.py [MODEL.gguf ...] [llama] [--tokens 16384] [--plot FILE]    minutes on an idle machine

`llama` is a random Llama of four layers in float32. Prompts are read in the planned chunks; behind 512, 1,024 ...
tokens some steps of one token are timed and cropped. Memory is the growth of the resident peak from before loading, as
the kernel counts it, against the plan's total.
"""

from __future__ import annotations

import ktitan  # isort: skip  (before torch: its idle threads sleep then)

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from ktitan.engine.generate import new_cache

STEPS = 16
LLAMA = {"vocab_size": 12288, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 1 << 17}


def resident(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise SystemExit(f"no {name} in /proc/self/status")


def loaded(path: str, context: int) -> Any:
    """A model with room for `context` tokens."""
    if path == "llama":
        model = AutoModelForCausalLM.from_config(LlamaConfig(**LLAMA, **HEADS), dtype=torch.float32)
        return ktitan.optimize_and_load(model, "auto", context=context)
    return ktitan.load(path, context=context)[0]


def decode_seconds(model: Any, cache: Any, seen: int) -> float:
    """A step of one token behind `seen`; the cache is as before."""
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        model.ktitan.program.run(torch.tensor([7]), cache)
        times.append(time.perf_counter() - began)
    cache.crop(seen)
    return statistics.median(times)


def measure(path: str, tokens: int) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """(tokens before, seconds a token) of the prompt's chunks, and of steps of one token."""
    first = loaded(path, 1024)  # whatever is loaded or made once
    first.ktitan.program.run(torch.arange(5, 25), new_cache(first))
    del first
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from now on
    model = loaded(path, tokens + 64)
    plan, cache = model.ktitan.plan, new_cache(model)
    ids, chunks, steps = torch.randint(3, 999, (tokens,)), [], []
    for part in ids.split(plan.chunk_tokens):
        seen, began = cache.get_seq_length(), time.perf_counter()
        model.ktitan.program.run(part, cache)
        chunks.append((seen, (time.perf_counter() - began) / len(part)))
        if (seen + len(part)) & (seen + len(part) - 1) == 0:
            steps.append((seen + len(part), decode_seconds(model, cache, seen + len(part))))
    took, planned = resident("VmHWM") - before, plan.totals["ram"]
    say(f"  memory: {took / 1e6:.1f} MB of {planned / 1e6:.1f} planned ({100 * took / planned - 100:+.1f} %)")
    kv = cache.pool.used_bytes
    say(f"  KV: {kv / 1e6:.1f} MB used of {plan.parts['ram']['kv'] / 1e6:.1f} planned")
    return chunks, steps


def line(points: list[tuple[int, float]]) -> tuple[float, float, float]:
    """Intercept, slope, and largest relative residual of a least-squares line."""
    slope, start = statistics.linear_regression(*zip(*points, strict=True))
    return start, slope, max(abs(start + slope * at - found) / found for at, found in points)


def say(text: str) -> None:
    """A line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def draw(found: dict[str, Any], target: Path) -> None:
    """Both kinds of steps over length, by matplotlib."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for place, (axis, title) in enumerate(zip(axes, ("prompt", "one token a step"), strict=True)):
        for name, parts in found.items():
            at, seconds = zip(*parts[place], strict=True)
            axis.plot(at, [1e3 * one for one in seconds], marker="o", label=name)
        axis.set(title=title, xlabel="tokens before", ylabel="ms a token", ylim=0)
        axis.legend()
    figure.savefig(target)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", default=["llama"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw time against length (matplotlib)")
    arguments = parser.parse_args()
    say(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    found = {}
    for path in arguments.models:
        name = "random Llama, 4 layers" if path == "llama" else Path(path).name
        say(name)
        chunks, steps = found[name] = measure(path, arguments.tokens)
        for title, points in (("prompt", chunks[:: len(chunks) // 8 or 1]), ("one token", steps)):
            say(f"  {title}, ms: " + ", ".join(f"{at}: {1e3 * seconds:.3f}" for at, seconds in points))
        start, slope, worst = line(steps)
        fit = f"{1e3 * start:.3f} ms + {1e6 * slope:.4f} ms for each 1,000 tokens before"
        say(f"  a line: {fit}, within {100 * worst:.0f} %")
    if arguments.plot:
        draw(found, arguments.plot)


if __name__ == "__main__":
    main()
