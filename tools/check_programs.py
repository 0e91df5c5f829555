"""What step programs are for, measured: Python's share of a token, stock transformers, latent attention; by hand.

python -P tools/check_programs.py [MODEL.gguf ...]    five minutes on an idle machine

Rounds of both sides take turns; medians are printed, with the spread of the ratio.
"""

from __future__ import annotations

import ktitan  # isort: skip  (before torch: its idle threads sleep then)

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, DynamicCache

from ktitan.engine.generate import GenerationStats, generate_tokens, new_cache
from ktitan.engine.sampling import Sampling

ROUNDS, TOKENS, PROMPT = 5, 64, 16
SAMPLINGS = {"greedy": Sampling(greedy=True), "sampled": Sampling(temperature=0.7, top_k=40, top_p=0.9)}
# DeepSeek-V2-Lite's attention; the rest is small, so that a step is mostly attention.
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": None}
SEEN = 4096


@contextmanager
def native_time(program: Any) -> Iterator[list[float]]:
    """Seconds that calls of the program's native parts take while the block runs."""
    spent, native = [0.0], program.native

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            began = time.perf_counter()
            returned = call(*arguments)
            spent[0] += time.perf_counter() - began
            return returned

        return run

    native.run, native.next = timed(native.run), timed(native.next)
    try:
        yield spent
    finally:
        del native.run, native.next


def decode(model: Any, sampling: Sampling) -> float:
    """Seconds a token after a short prompt, the sampler included."""
    stats = GenerationStats()
    prompt = torch.arange(5, 5 + PROMPT)
    for _ in generate_tokens(model, prompt, max_new_tokens=TOKENS, sampling=sampling, ignore_eos=True, stats=stats):
        pass
    return stats.decode_seconds / stats.decode_steps


def outside(model: Any, sampling: Sampling) -> tuple[float, float]:
    """Seconds a token, and the share of it that is not in native code; a round after one to warm up."""
    decode(model, sampling)
    stats, prompt = GenerationStats(), torch.arange(5, 5 + PROMPT)
    with native_time(model.ktitan.program) as spent:
        began = 0.0
        for _ in generate_tokens(model, prompt, max_new_tokens=TOKENS, sampling=sampling, ignore_eos=True, stats=stats):
            began = began or spent[0]  # the prompt's part
    return stats.decode_seconds / stats.decode_steps, 1 - (spent[0] - began) / stats.decode_seconds


def say(text: str) -> None:
    """A line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def shares(path: str) -> None:
    """Python's share of a decoded token."""
    model, _ = ktitan.load(path)
    for name, sampling in SAMPLINGS.items():
        found = [outside(model, sampling) for _ in range(ROUNDS)]
        seconds, share = (statistics.median(part) for part in zip(*found, strict=True))
        say(f"{Path(path).name}, {name}: {1e3 * seconds:.2f} ms a token, {100 * share:.1f} % of it outside native code")


def compare(name: str, ours: Callable[[], float], theirs: dict[str, Callable[[], float]]) -> None:
    """Rounds in turn; how many times faster than the best of the others."""
    found = [(ours(), {kind: run() for kind, run in theirs.items()}) for _ in range(ROUNDS)]
    mine = statistics.median(own for own, _ in found)
    medians = {kind: statistics.median(others[kind] for _, others in found) for kind in theirs}
    ratios = sorted(min(others.values()) / own for own, others in found)
    listed = ", ".join(f"{kind} {1e3 * seconds:.2f}" for kind, seconds in medians.items())
    say(
        f"{name}: {1e3 * mine:.2f} ms a token against {listed}: {statistics.median(ratios):.1f} times "
        f"(rounds {ratios[0]:.1f} to {ratios[-1]:.1f})"
    )


def against_stock(path: str) -> None:
    """Decoding of a GGUF against transformers' own dequantised model."""
    model, _ = ktitan.load(path)
    folder, file = str(Path(path).parent), Path(path).name
    stock = {
        str(dtype).removeprefix("torch."): AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    }
    sides = {f"transformers {kind}": lambda one=one: decode(one, SAMPLINGS["greedy"]) for kind, one in stock.items()}
    compare(f"{file}, decode", lambda: decode(model, SAMPLINGS["greedy"]), sides)


def latent_step(run: Callable[[torch.Tensor], Any], crop: Callable[[], None]) -> Callable[[], float]:
    """Seconds of a step of one token behind SEEN others; what it adds to the cache is cropped."""

    def timed() -> float:
        times = []
        for _ in range(8):
            began = time.perf_counter()
            run(torch.tensor([7]))
            times.append(time.perf_counter() - began)
            crop()
        return statistics.median(times)

    return timed


@torch.inference_mode()
def latent(heads: int) -> None:
    """A step of latent attention behind 4,096 tokens against the stock class."""
    config = DeepseekV3Config(
        vocab_size=64, hidden_size=512, intermediate_size=128, num_hidden_layers=2, first_k_dense_replace=2,
        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=8192, **LATENT,
    )  # fmt: skip
    torch.manual_seed(0)
    stock = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    ids, cache = torch.randint(64, (SEEN,)), DynamicCache(config=config)
    stock(input_ids=ids[None], past_key_values=cache, logits_to_keep=1)
    with tempfile.TemporaryDirectory() as folder:
        stock.save_pretrained(folder)
        model = ktitan.optimize_and_load(AutoModelForCausalLM.from_config(config), "auto", weights=folder)
    own = new_cache(model)
    for part in ids.split(512):
        model.ktitan.program.run(part, own)

    def call(one: torch.Tensor) -> None:
        stock(input_ids=one[None], past_key_values=cache)

    theirs = latent_step(call, lambda: cache.crop(-1))
    ours = latent_step(lambda one: model.ktitan.program.run(one, own), lambda: own.crop(-1))
    compare(f"latent attention, {heads} heads, 2 layers, behind {SEEN} tokens", ours, {"transformers float32": theirs})


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL.gguf", help="decoded; the first one against transformers")
    arguments = parser.parse_args()
    say(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    for path in arguments.models:
        shares(path)
    for path in arguments.models[:1]:
        against_stock(path)
    for heads in (16, 64):
        latent(heads)


if __name__ == "__main__":
    main()
