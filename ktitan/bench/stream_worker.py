"""Our side of `ktitan bench stream` in a process of its own: one model, timed token by token on request.

Run by `python -m` with one argument, a JSON object: `model`, `threads`, `context`, and `budget` and `rules` as
`ktitan.load` takes them (null: no limit, and auto). The first line on stdout is a JSON object that describes the model,
or `{"error": ...}`. Each line on stdin is a JSON list [ids, ids that follow] and is answered with the seconds of each
step, the counters of the store over the steps that follow and after them, and digests of what was computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import sys
import time
from typing import Any

__all__ = ["main"]

_MOST_WAIT_SECONDS = 120
_LOGITS = 8


def main(text: str) -> None:
    """Load, describe, then answer until stdin ends."""
    from ktitan.errors import KtitanError

    options = json.loads(text)
    out = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            model, about = _loaded(options)
            _wait_for_memory(model)
        _say(out, about)
        for line in sys.stdin:
            ids, following = json.loads(line)
            _say(out, _timed(model, ids, following))
    except KtitanError as error:
        _say(out, {"error": error.message, "where": error.where, "remedy": error.remedy})


def _loaded(options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    from ktitan.api import load, set_threads
    from ktitan.bench.cpu import token_bytes

    start = time.perf_counter()
    set_threads(options["threads"])
    rules = options.get("rules") or "auto"
    model, _ = load(
        options["model"],
        rules=rules,
        budget=options["budget"],
        device="cpu",
        context=options["context"],
        cache=options.get("cache"),
    )
    config = model.config.get_text_config(decoder=True)
    return model, {
        "seconds": time.perf_counter() - start,
        "vocabulary": int(config.vocab_size),
        "token_bytes": token_bytes(model),
        "budgeted": options["budget"] is not None,
        "streams": bool(_store(model)),
        "record_bytes": _record_bytes(model),
    }


def _wait_for_memory(model: Any) -> None:
    """Until the kernel has given the cache its pages, which it does in the background: the peer, too, reads its file
    while it loads. A page's first write costs more than the read on machines whose memory is a host's.
    """
    deadline = time.perf_counter() + _MOST_WAIT_SECONDS
    while time.perf_counter() < deadline:
        store = _store(model)
        if store.get("filled_bytes", 0) >= store.get("arena_bytes", 0):
            return
        time.sleep(0.05)


def _record_bytes(model: Any) -> int:
    """Bytes of a routed expert, else of the median streamed matrix: the size at which the drive is read; 0 without."""
    rows = [row for row in model.ktitan.plan.rows if row.operator.endswith(".streamed")]
    config = model.config.get_text_config(decoder=True)
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    count = next((n for n in (getattr(config, name, None) for name in names) if n), 1)
    experts = [row.bytes // count for row in rows if row.operator.startswith("experts.")]
    matrices = sorted(row.bytes for row in rows if row.operator.startswith("linear."))
    if experts:
        return max(experts)
    return matrices[len(matrices) // 2] if matrices else 0


def _store(model: Any) -> dict[str, Any]:
    """Counters of the store, flat; empty where nothing is streamed."""
    counters = dict(model.ktitan.stats().get("store") or {})
    return {**counters, **{f"io_{name}": value for name, value in (counters.pop("io", None) or {}).items()}}


def _timed(model: Any, ids: list[int], following: list[int]) -> dict[str, Any]:
    """One sequence: `ids` at once, then `following` one at a time; greedy choices are made and not followed."""
    from ktitan.api import GenerationStats, generate_tokens, new_cache
    from ktitan.bench.drive import drive_bytes

    cache, sequence = new_cache(model), list(ids)
    seconds: list[float] = []
    chosen: list[int] = []
    before, start_bytes = _store(model), drive_bytes() or 0
    prompt_counts: dict[str, int] = {}
    for token in [None, *following]:
        if token is not None:
            sequence.append(token)
        stats = GenerationStats()
        steps = generate_tokens(model, sequence, max_new_tokens=1, ignore_eos=True, cache=cache, stats=stats)
        chosen += list(steps)
        seconds.append(stats.prefill_seconds)
        if token is None:
            after, read_bytes = _store(model), drive_bytes() or 0
            prompt_counts, before = _difference(before, after), after
    end_bytes = drive_bytes() or 0
    after = _store(model)
    return {
        "prefill": seconds[0],
        "steps": seconds[1:],
        "prompt_bytes": read_bytes - start_bytes,
        "read_bytes": end_bytes - read_bytes,
        "prompt_store": prompt_counts,
        "store": _difference(before, after),
        "after": after,
        "arena_bytes": after.get("arena_bytes", 0),
        "uring": after.get("io_uring"),
        "chosen": hashlib.sha256(json.dumps(chosen).encode()).hexdigest(),
        "logits": _logits_digest(model, ids),
    }


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    return {name: value - before.get(name, 0) for name, value in after.items() if isinstance(value, int)}


def _logits_digest(model: Any, ids: list[int]) -> str:
    """SHA-256 of the last logits after `ids`; equal digests are equal bits."""
    import torch

    with torch.inference_mode():
        # All logits of a long prompt would take more memory than the run that is measured.
        kept = {"logits_to_keep": _LOGITS} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        logits = model(input_ids=torch.tensor([ids]), use_cache=False, **kept).logits.float().contiguous()
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()


def _say(out: Any, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
