"""The peer's own process: llama.cpp on one file, timed on request. Run as a script; it imports nothing of ktitan.

A process of its own, because ktitan sets how OpenMP's idle threads wait, which costs llama.cpp a third of its speed.

Arguments: MODEL THREADS POSITIONS. Each line on stdin is a JSON list [ids, new tokens]; the answer is a JSON list
[prefill seconds, decode seconds], or one line with the reason when llama.cpp cannot be used.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main(model: str, threads: int, positions: int) -> None:
    """Load, say "ready", then answer until stdin ends."""
    try:
        from llama_cpp import Llama
    except ImportError as error:
        _say(f"llama-cpp-python cannot be imported: {error}")
        return
    options = {"n_ctx": positions + 8, "n_batch": positions, "n_ubatch": 512, "verbose": False}
    try:
        engine: Any = Llama(model, n_threads=threads, n_threads_batch=threads, **options)
    except (ValueError, OSError, RuntimeError) as error:
        _say(f"llama.cpp cannot load the file: {error}")
        return
    _say("ready")
    for line in sys.stdin:
        ids, new = json.loads(line)
        _say(json.dumps(_timed(engine, ids, new)))


def _timed(engine: Any, ids: list[int], new: int) -> tuple[float, float]:
    engine.reset()
    start = time.perf_counter()
    engine.eval(ids)
    middle = time.perf_counter()
    for _ in range(new):
        engine.eval([ids[0]])
    return middle - start, time.perf_counter() - middle


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
