"""Proves on a large model that streaming keeps its promises; by hand, as root, on a quiet drive.

python -P tools/check_stream.py bits MODEL ONE_LAYER    same bits; memory within budget + R0 + 64 MB, also in a cgroup
python -P tools/check_stream.py long MODEL [--share 0.15] [--tokens 10000]    no growth, counters add up

MODEL and ONE_LAYER come from examples/make_moe.py (--experts 96, and --experts 8 --layers 1). R0 is the peak of the
same program with the one-layer model. Each run is a process of its own: tests/support/stream_program.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHARES = (1.0, 0.5, 0.25, 0.1)
SPARE_BYTES = 64_000_000
# Pages of the C library's heap that come and go.
MOST_GROWTH_BYTES = 4 << 20


def program(model: Path, *options: object, limit_bytes: int | None = None) -> dict[str, Any]:
    """What a run reports; with `limit_bytes` it runs in a memory cgroup of that size, and must live."""
    from support.memory_cgroup import memory_cgroup

    command = ["env", f"PYTHONPATH={ROOT}:{ROOT}/tests", "OMP_NUM_THREADS=1", sys.executable, "-P"]
    command += ["-m", "support.stream_program", str(model), *map(str, options)]
    with memory_cgroup(limit_bytes) if limit_bytes else nullcontext() as group:
        if group is None:
            done: Any = subprocess.run(command, capture_output=True, text=True, check=False)
        else:
            done = group.run(command)
    if done.returncode:
        raise SystemExit(f"the run failed ({done.returncode}): {' '.join(command)}\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    found["group_peak"] = None if group is None else done.peak_bytes
    return found


def line(name: str, found: dict[str, Any]) -> str:
    """One run for people; MB are 1e6 bytes."""
    text = f"{name:>9}: peak {found['peak_rss'] / 1e6:.0f} MB"
    if found["group_peak"]:
        text += f", group {found['group_peak'] / 1e6:.0f} MB"
    if found["after"]:
        after, before = found["after"], found["before"]
        demands, hits = (after[name] - before[name] for name in ("demands", "hits"))
        counted = after["io"]["read_bytes"] - before["io"]["read_bytes"]
        text += (
            f", cache {found['cache_bytes'] / 1e6:.0f} of {found['streamed_bytes'] / 1e6:.0f} MB"
            f", hits {hits / demands:.3f}, read {counted / 1e6:.0f} MB (kernel {found['kernel_bytes'] / 1e6:.0f})"
        )
    return f"{text}, {found['tokens_per_second']:.2f} tokens/s"


def say(text: str) -> None:
    """A line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def check(holds: bool, what: str) -> None:
    """Stop at the first promise that is not kept."""
    if not holds:
        raise SystemExit(f"NOT SO: {what}")
    say(f"           {what}")


def check_counters(found: dict[str, Any]) -> None:
    """hits + misses = demands, and bytes within 2 % of the kernel's."""
    after, before = found["after"], found["before"]
    check(after["demands"] == after["hits"] + after["misses"], f"{after['demands']} demands are hits + misses")
    counted = after["io"]["read_bytes"] - before["io"]["read_bytes"]
    check(abs(found["kernel_bytes"] - counted) <= 0.02 * counted, "bytes read agree with /proc/self/io within 2 %")


def check_bits(given: argparse.Namespace) -> None:
    """Every budget gives what the resident run gives, in the memory that it was allowed."""
    weights = given.model.stat().st_size
    expected = program(given.model, "--resident", "--tokens", given.tokens)
    say(line("resident", expected))
    for share in SHARES:
        budget = int(share * weights)
        options = ("--ram", budget, "--tokens", given.tokens)
        one_layer = program(given.one_layer, *options)
        allowed = budget + one_layer["peak_rss"] + SPARE_BYTES
        found = program(given.model, *options, limit_bytes=allowed)
        say(f"{line('R0', one_layer)}\n{line(f'{share:.0%}', found)}")
        same = (found["logits"], found["greedy"]) == (expected["logits"], expected["greedy"])
        check(same, f"logits and {given.tokens} greedy tokens have the bits of the resident run")
        check(
            found["peak_rss"] <= allowed, f"peak <= budget + R0 + 64 MB = {allowed / 1e6:.0f} MB, cgroup of that size"
        )
        if share < 1:
            check_counters(found)


def check_long(given: argparse.Namespace) -> None:
    """Memory and descriptors of many answers."""
    found = program(given.model, "--share", given.share, "--tokens", given.tokens, "--prompts")
    say(line(f"{given.share:.0%}", found))
    _, rss, files = zip(*found["samples"], strict=True)
    say(f"           resident MB after each answer: {[round(size / 1e6) for size in rss]}; descriptors: {set(files)}")
    check(len(set(files)) == 1, "descriptors do not grow")
    # The first answer makes what later ones use again.
    half = len(rss) // 2
    grown = statistics.median(rss[half:]) - statistics.median(rss[1:half])
    check(grown <= MOST_GROWTH_BYTES, f"memory does not grow: {grown / 1e6:+.1f} MB between the halves")
    check_counters(found)


def main() -> None:
    """The command."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    bits = commands.add_parser("bits")
    bits.add_argument("model", type=Path)
    bits.add_argument("one_layer", type=Path)
    bits.add_argument("--tokens", type=int, default=24)
    bits.set_defaults(check=check_bits)
    long = commands.add_parser("long")
    long.add_argument("model", type=Path)
    long.add_argument("--share", type=float, default=0.15)
    long.add_argument("--tokens", type=int, default=10_000)
    long.set_defaults(check=check_long)
    given = parser.parse_args()
    given.check(given)


if __name__ == "__main__":
    main()
