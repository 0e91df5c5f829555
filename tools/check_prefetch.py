"""Proves on throttled drives that reading ahead pays where it can and costs nothing where it cannot; by hand, as root.

python -P tools/check_prefetch.py [--seed 7]    ten minutes

Three drives of 13 MB/s each hold the same experts, and a process each goes through the same steps (tests/support/
guess_program.py): prefetch off, on and auto. The drive is idle for half of the time, then saturated, then both again.
Bytes and steps are those of the store; times are those of the drive, which the kernel holds back, so that other work
on the machine changes little. What auto keeps, "on" and "off" must not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODES = ("off", "on", "auto")
# (stretch, steps). The second of two stretches of a kind is measured: the first has the comparisons.
REGIMES = ("idle", "idle", "saturated", "saturated", "idle", "idle", "saturated")
STEPS = (90, 40, 32, 60, 90, 30, 32)
Found = list[dict[str, Any]]


def runs(seed: int) -> dict[str, Found]:
    """What each mode's process reports of its stretches."""
    from support.guess_program import BYTES_A_SECOND, INNER, file_bytes, make_file
    from support.throttled_drives import throttled_drives

    stretches = [f"{regime}:{steps}" for regime, steps in zip(REGIMES, STEPS, strict=True)]
    environment = ("env", f"PYTHONPATH={ROOT}:{ROOT}/tests", "OMP_NUM_THREADS=1", "KTITAN_THREADS=1")
    size = int(1.3 * file_bytes(INNER)) + (32 << 20)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        drives = stack.enter_context(throttled_drives(folder, len(MODES), size, BYTES_A_SECOND))
        started = {}
        for mode, mount in zip(MODES, drives.mounts, strict=True):
            file = mount / "experts"
            make_file(file)
            os.sync()
            program = (sys.executable, "-P", "-m", "support.guess_program", file, mode, seed, *stretches)
            started[mode] = subprocess.Popen(drives.command(*environment, *program), stdout=subprocess.PIPE, text=True)
        return {mode: json.loads(run.communicate()[0]) for mode, run in started.items()}


def faults(tried: Found, off: Found) -> list[str]:
    """Which promises a run breaks, against that without guesses."""
    wall = [one["wall"] / other["wall"] for one, other in zip(tried, off, strict=True)]
    read = [one["read_bytes"] / other["read_bytes"] for one, other in zip(tried, off, strict=True)]
    on = [stretch["levels"][-1] > 0 for stretch in tried]
    # A comparison may run at any step of an idle stretch, whose last step is then no sign.
    mostly = [2 * sum(level > 0 for level in stretch["levels"]) > len(stretch["levels"]) for stretch in tried]
    promises = {
        "idle: mostly on, and 10 % of the time gained": mostly[1] and wall[1] <= 0.9,
        "saturated: off within 32 steps": not on[2],
        "saturated: nothing is foreseen or guessed": tried[3]["predicted"] == tried[3]["guesses"] == 0,
        "saturated: 1 % of time and of bytes": max(wall[3], read[3]) <= 1.01,
        "idle again: mostly on, and gains again": mostly[5] and wall[5] <= 0.9,
        "saturated again: off again": not on[6],
    }
    return [promise for promise, kept in promises.items() if not kept]


def say(text: str) -> None:
    """A line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """The command."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=7)
    found = runs(parser.parse_args().seed)
    for mode, stretches in found.items():
        for one, plain in zip(stretches, found["off"], strict=True):
            steps = len(one["levels"])
            say(
                f"{mode:>4} {one['regime']:>9} x{steps}: "
                f"{1000 * one['wall'] / steps:.0f} ms a step ({one['wall'] / plain['wall']:.3f} of off), "
                f"stall {one['stall_ns'] / steps / 1e6:.0f} ms, {one['read_bytes'] / steps / 1e6:.2f} MB; "
                f"guesses {one['guesses']}, used {one['guesses_used']}, late {one['guesses_late']}; "
                f"on for {sum(level > 0 for level in one['levels'])}"
            )
    broken = {mode: faults(stretches, found["off"]) for mode, stretches in found.items()}
    for mode in MODES:
        say(f"{mode}: {'; '.join(f'NOT SO: {fault}' for fault in broken[mode]) or 'all promises kept'}")
    if broken["auto"] or not broken["on"] or not broken["off"]:
        raise SystemExit("NOT SO")


if __name__ == "__main__":
    main()
