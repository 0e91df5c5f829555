"""The peer's own process: llama.cpp on one file, timed on request. Run as a script; it imports nothing of ktitan.

A process of its own, because ktitan sets how OpenMP's idle threads wait, which costs llama.cpp a third of its speed.

Arguments: MODEL THREADS POSITIONS [as-stored]. With the last one weights are used as they are mapped: repacked ones
need memory of their own. Each line on stdin is a JSON list [ids, ids that follow]; the answer is a JSON list [prefill
seconds, [seconds of each token that follows], bytes read from drives for them], or one line with the reason when
llama.cpp cannot be used.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any


def main(model: str, threads: int, positions: int, as_stored: bool) -> None:
    """Load, say "ready", then answer until stdin ends."""
    try:
        from llama_cpp import Llama
    except ImportError as error:
        _say(f"llama-cpp-python cannot be imported: {error}")
        return
    options = {"n_ctx": positions + 8, "n_batch": positions, "n_ubatch": 512, "verbose": False}
    try:
        if as_stored:
            _keep_as_stored()
        engine: Any = Llama(model, n_threads=threads, n_threads_batch=threads, **options)
    except (AttributeError, ValueError, OSError, RuntimeError) as error:
        _say(f"llama.cpp cannot load the file: {error}")
        return
    _say("ready")
    for line in sys.stdin:
        ids, following = json.loads(line)
        _say(json.dumps(_timed(engine, ids, following)))


def _keep_as_stored() -> None:
    """Switch repacking off for models that are loaded from now on; `Llama` itself has no option for it."""
    from llama_cpp import llama_cpp

    make = llama_cpp.llama_model_default_params

    def without() -> Any:
        parameters = make()
        parameters.use_extra_bufts = False
        return parameters

    llama_cpp.llama_model_default_params = without


def _timed(engine: Any, ids: list[int], following: list[int]) -> tuple[float, list[float], int]:
    engine.reset()
    start = time.perf_counter()
    engine.eval(ids)
    prefill, read_bytes = time.perf_counter() - start, _drive_bytes()
    marks = [time.perf_counter()]
    for token in following:
        engine.eval([token])
        marks.append(time.perf_counter())
    steps = [after - before for before, after in itertools.pairwise(marks)]
    return prefill, steps, _drive_bytes() - read_bytes


def _drive_bytes() -> int:
    """`read_bytes` of proc(5): page faults on the mapped file count."""
    with open("/proc/self/io", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "as-stored" in sys.argv[4:])
