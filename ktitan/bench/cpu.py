"""`ktitan bench cpu MODEL`: prefill and decode of one model on the processor, beside a peer on the same file.

Rounds run this engine, the peer and a read of memory in turn, so that ratios and shares compare the same minute. The
peer is llama.cpp through `llama-cpp-python`, which is no dependency; it runs in a process of its own.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ktitan.bench.measure import LEAST_RUNS, SETTLE_SECONDS, Pairing, Timing
from ktitan.bench.memory import aligned_buffer, buffer_bytes, fill, reader
from ktitan.bench.result import Result
from ktitan.bench.team import Team
from ktitan.env import given_variables
from ktitan.errors import UnsupportedError
from ktitan.hardware import Hardware, detect

__all__ = ["PEERS", "Case", "llamacpp", "run", "timed_rounds", "token_bytes"]

logger = logging.getLogger("ktitan.bench.cpu")

PEERS = ("llamacpp",)
# What configs call the number of routed experts.
_EXPERT_COUNTS = ("n_routed_experts", "num_local_experts", "num_experts")
Progress = Callable[[str], None]
# Prefill seconds and decode seconds of one run over the same ids.
Side = Callable[[np.ndarray, int], "tuple[float, float]"]


@dataclass(frozen=True)
class Case:
    """What is run: `prompt` tokens at once, then `new` one at a time, `rounds` times."""

    prompt: int
    new: int
    rounds: int


def run(
    model: str | Path,
    *,
    peer: str | None = None,
    prompt: int = 512,
    new: int = 32,
    rounds: int = 5,
    threads: int | None = None,
    hardware: Hardware | None = None,
    progress: Progress = logger.info,
) -> list[Result]:
    """Prefill and decode rates of `model`, random prompt tokens, greedy.

    Args:
        model: anything that `ktitan.load` takes; the peer reads a `.gguf` only.
        peer: "llamacpp" or None.
        prompt: tokens of the prompt, run in chunks as `ktitan.stream` does.
        new: tokens decoded after it.
        rounds: timed rounds, after one that is not timed; at least 3.
        threads: of torch, of the CPU kernels and of the peer; None: KTITAN_THREADS, else the usable CPUs.
        hardware: the machine, when it has been detected already.
        progress: told what is done next.

    Raises:
        UnsupportedError: the peer is not installed, or cannot read the model.
        WeightError, FormatError, IoError: the model cannot be loaded.
    """
    hardware = hardware or detect()
    count = _threads(threads)
    case = Case(prompt, new, max(rounds, LEAST_RUNS))
    progress(f"loading {model}")
    ours, active_bytes, vocabulary = _ours(model)
    theirs = None if peer is None else llamacpp(model, peer, count, prompt + new)
    ids = np.random.default_rng(0).integers(3, vocabulary, prompt)
    buffer = aligned_buffer(buffer_bytes(hardware))
    with Team(count) as team:
        fill(buffer, team)
        columns = timed_rounds(ours, theirs, reader(buffer, team), ids, case, progress)
    return _results(Path(model).stem, case, columns, buffer.size, active_bytes, peer, count)


def token_bytes(model: Any) -> int:
    """Bytes of weights that one decoded token reads: all matrices once, of routed experts only the chosen share."""
    config = model.config.get_text_config(decoder=True)
    chosen = getattr(config, "num_experts_per_tok", None) or 1
    total = next((n for n in (getattr(config, name, None) for name in _EXPERT_COUNTS) if n), chosen)
    size = 0.0
    for row in model.ktitan.plan.rows:
        if row.operator.startswith("embedding.") and not config.tie_word_embeddings:
            continue  # one row of the table; a tied one is read whole as the head
        size += row.bytes * (chosen / total if row.operator.startswith("experts.") else 1)
    return int(size)


def _threads(count: int | None) -> int:
    from ktitan.api import set_threads

    return set_threads(count)


def _ours(model: str | Path) -> tuple[Side, int, int]:
    import torch

    from ktitan.api import GenerationStats, generate_tokens, load

    loaded, _ = load(model, device="cpu")

    def side(ids: np.ndarray, new: int) -> tuple[float, float]:
        stats = GenerationStats()
        steps = generate_tokens(loaded, torch.from_numpy(ids), max_new_tokens=new + 1, ignore_eos=True, stats=stats)
        for _ in steps:
            pass
        return stats.prefill_seconds, stats.decode_seconds

    return side, token_bytes(loaded), int(loaded.config.get_text_config(decoder=True).vocab_size)


def llamacpp(model: str | Path, peer: str, threads: int, positions: int) -> Side:
    """The peer over the same file.

    Raises:
        UnsupportedError: there is no such peer, it is not installed, or it cannot read the model.
    """
    if peer not in PEERS:
        raise UnsupportedError(f"no peer {peer!r}", "--peer", f"known: {', '.join(PEERS)}")
    if not str(model).endswith(".gguf"):
        raise UnsupportedError("llama.cpp reads GGUF files only", str(model), "give the path of a .gguf")
    command = [sys.executable, str(Path(__file__).with_name("peer_llamacpp.py")), str(model), str(threads)]
    process = subprocess.Popen(
        [*command, str(positions)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=given_variables(),
    )
    atexit.register(process.kill)
    answer = _answer(process)
    if answer != "ready":
        remedy = 'CMAKE_ARGS="-DGGML_NATIVE=ON" pip install llama-cpp-python'
        raise UnsupportedError(answer or "llama.cpp ended without a word", "--peer", remedy)

    def side(ids: np.ndarray, new: int) -> tuple[float, float]:
        if process.stdin is not None:
            process.stdin.write(json.dumps([ids.tolist(), ids[:1].tolist() * new]) + "\n")
            process.stdin.flush()
        prefill, steps, _ = json.loads(_answer(process) or "[]") or (math.nan, [math.nan], 0)
        return prefill, sum(steps)

    return side


def _answer(process: subprocess.Popen[str]) -> str:
    """The peer's next line; "" when it has ended."""
    return "" if process.stdout is None else process.stdout.readline().strip()


def timed_rounds(
    ours: Side, theirs: Side | None, read: Callable[[], int], ids: np.ndarray, case: Case, progress: Progress
) -> dict[str, list[float]]:
    """Seconds of each part over the rounds; the first round warms up, every other one runs in reverse."""
    columns: dict[str, list[float]] = {}
    sides = {"ours": ours, **({"peer": theirs} if theirs is not None else {})}
    for number in range(case.rounds + 1):
        progress(f"round {number} of {case.rounds}")
        found: dict[str, float] = {}
        for name in sorted(sides, reverse=bool(number % 2)):
            time.sleep(SETTLE_SECONDS)  # the other side's idle threads may still spin
            found[f"{name} prefill"], found[f"{name} decode"] = sides[name](ids, case.new)
            time.sleep(SETTLE_SECONDS)
            start = time.perf_counter()
            read()
            found["read"] = time.perf_counter() - start
        for name, seconds in found.items() if number else ():
            columns.setdefault(name, []).append(seconds)
    return columns


def _results(
    stem: str, case: Case, columns: dict[str, list[float]], read_bytes: int, active: int, peer: str | None, threads: int
) -> list[Result]:
    read = Timing(tuple(columns["read"]))
    results = []
    for phase, tokens, after in (("prefill", case.prompt, ""), ("decode", case.new, f" after {case.prompt}")):
        mine = Timing(tuple(columns[f"ours {phase}"]))
        theirs = None if peer is None else Timing(tuple(columns[f"peer {phase}"]))
        ceiling = read_bytes / read.median / active if phase == "decode" else None
        share = None if ceiling is None else Pairing(mine, read).ratio(tokens * active, read_bytes)
        results.append(
            Result(
                case=f"cpu-{phase}-{tokens}-{stem}",
                metric=f"{tokens} tokens{after}, {threads} threads, {active / 1e6:.1f} MB of weights a token",
                value=mine.rate(tokens),
                unit="tokens/s",
                ceiling=ceiling,
                share_of_ceiling=share,
                peer=peer,
                peer_value=None if theirs is None else theirs.rate(tokens),
                ratio_to_peer=None if theirs is None else Pairing(mine, theirs).ratio(),
                runs=mine.runs,
                spread=mine.spread,
            )
        )
    return results
