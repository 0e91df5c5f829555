"""Every kind of case: what it starts from, what it does, and its share of a run."""

import random
import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fuzz import doors, gguf_cases, json_cases, native_cases, yaml_cases

from ktitan.errors import KtitanError

# Of one case. CPU seconds: other work on the machine does not count.
MOST_SECONDS = 5.0
# Above what the process needed before the first case.
MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Kind:
    """`case(rng, seeds, folder)` makes an input from the seeds, writes it into `folder` and opens it."""

    share: float
    seeds: Callable[[], Any]
    case: Callable[..., None]


KINDS = {
    "gguf-bytes": Kind(0.25, cache(gguf_cases.seeds), gguf_cases.bytes_case),
    "gguf-content": Kind(0.22, cache(gguf_cases.seeds), gguf_cases.content_case),
    "gguf-shards": Kind(0.04, cache(gguf_cases.seeds), gguf_cases.shards_case),
    "gguf-plan": Kind(0.015, cache(gguf_cases.seeds), gguf_cases.plan_case),
    "safetensors": Kind(0.17, cache(json_cases.header_seeds), json_cases.header_case),
    "native": Kind(0.03, cache(native_cases.seeds), native_cases.native_case),
    "index": Kind(0.06, cache(json_cases.header_seeds), json_cases.index_case),
    "config": Kind(0.04, cache(json_cases.model_seeds), json_cases.config_case),
    "config-plan": Kind(0.01, cache(json_cases.model_seeds), json_cases.config_plan_case),
    "tokenizer": Kind(0.02, cache(json_cases.tokenizer_seed), json_cases.tokenizer_case),
    "rules": Kind(0.125, cache(yaml_cases.seeds), yaml_cases.rules_case),
    "rules-plan": Kind(0.02, cache(yaml_cases.seeds), yaml_cases.plan_case),
}


@dataclass
class Tally:
    """What came of some cases.

    Attributes:
        outcomes: "accepted" or an error's code -> how often.
        escapes: the case and what came out of it in place of a KtitanError.
        slowest: CPU seconds of the slowest case, and its name.
        grown_bytes: peak memory above that before the first case.
    """

    outcomes: Counter = field(default_factory=Counter)
    escapes: list = field(default_factory=list)
    slowest: tuple = (0.0, "")
    grown_bytes: int = 0


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_case(kind, seed, number, folder):
    """ "accepted" or the code of the KtitanError; anything else is raised as it is."""
    rng = random.Random(f"{seed}/{kind}/{number}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        KINDS[kind].case(rng, KINDS[kind].seeds(), folder)
    except KtitanError as error:
        doors.readable(error)
        return error.code
    return "accepted"


def run_cases(kind, seed, numbers, folder, before=lambda number: None):
    """Run cases of one kind; escapes, slow ones and memory jumps are collected, not raised."""
    KINDS[kind].seeds()
    tally, base = Tally(), peak_bytes()
    for number in numbers:
        before(number)
        start, name = time.process_time(), f"--seed {seed} --kind {kind} --case {number}"
        try:
            tally.outcomes[run_case(kind, seed, number, folder)] += 1
        except (Exception, _rust_panic()) as error:  # noqa: BLE001  what escapes is what is looked for
            tally.outcomes["ESCAPED"] += 1
            tally.escapes.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
        seconds = time.process_time() - start
        tally.slowest = max(tally.slowest, (seconds, name))
        if seconds > MOST_SECONDS:
            tally.escapes.append(f"{name}: took {seconds:.1f} s")
        grown = peak_bytes() - base
        if grown > MOST_BYTES > tally.grown_bytes:
            tally.escapes.append(f"{name}: memory grew by {grown >> 20} MiB")
        tally.grown_bytes = max(tally.grown_bytes, grown)
    return tally


@cache
def _rust_panic():
    """The class of panics in Rust libraries, which is no Exception."""
    from tokenizers import Tokenizer, models  # noqa: F401

    for kind in BaseException.__subclasses__():
        if kind.__name__ == "PanicException":
            return kind
    return MemoryError
