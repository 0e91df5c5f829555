"""Runs many mutated inputs through ktitan's public doors, in processes with a memory limit.

    make fuzz [CASES=100000] [SEED=...]
    PYTHONPATH=.:tests python -m fuzz.run --cases 100000 --processes 4
    PYTHONPATH=.:tests python -m fuzz.run --seed 7 --kind gguf-bytes --case 123      # one again, with its traceback

Every case is a function of seed, kind and number, so a line of the report is enough to see it again. Exit 1 when
anything but a KtitanError came out, when a case took too long, or when memory grew past the bound.
"""

import argparse
import faulthandler
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

# Address space above what is mapped before the first case, so that an attempt to take more fails at once.
SPACE_BYTES = 1 << 30
STUCK_SECONDS = 120


def main():
    """Read the options, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--kind", help="only this one")
    parser.add_argument("--case", type=int, help="only this number of --kind")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    if options.case is not None:
        return replay(options)
    print(f"seed {options.seed}", flush=True)
    sys.exit(1 if report(run_all(options)) else 0)


def replay(options):
    """One case, with whatever it raises; its files stay."""
    from fuzz.kinds import run_case

    folder = Path(tempfile.mkdtemp(prefix="ktitan-fuzz-")) / "case"
    print(f"files in {folder}")
    print(run_case(options.kind, options.seed, options.case, folder))


def run_all(options):
    """Results of every process: (kind, Tally, seconds) each, or a text for one that died."""
    context = multiprocessing.get_context("spawn")
    queue, workers = context.Queue(), []
    for share in range(options.processes):
        progress = context.Array("c", 200)
        arguments = (options.seed, options.cases, options.kind, share, options.processes, progress, queue)
        workers.append((context.Process(target=work, args=arguments), progress))
        workers[-1][0].start()
    results, open_shares = [], options.processes
    while open_shares:
        dead = [worker for worker, _ in workers if worker.exitcode not in (None, 0)]
        if queue.empty() and dead:
            time.sleep(1)
            if queue.empty():
                break
        if not queue.empty():
            found = queue.get()
            open_shares -= found is None
            results += [] if found is None else [found]
            if found is not None:
                print(f"  a share of {found[0]} is done", file=sys.stderr, flush=True)
        time.sleep(0.05)
    for worker, progress in workers:
        worker.join()
        if worker.exitcode:
            results.append(f"{progress.value.decode()}: the process died ({worker.exitcode})")
    return results


def work(seed, cases, only, share, shares, progress, queue):
    """One process: its share of the cases of every kind."""
    import torch
    from fuzz.kinds import KINDS, run_cases

    faulthandler.enable()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ktitan-fuzz-") as folder:
        for name, kind in KINDS.items():
            if only not in (None, name):
                continue
            count = cases if only else round(cases * kind.share)
            run_cases(name, seed, range(10), Path(folder, "case"))  # whatever is loaded once
            limit_memory()

            def before(number, name=name):
                progress.value = f"--seed {seed} --kind {name} --case {number}".encode()
                faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)

            start = time.monotonic()
            queue.put(
                (
                    name,
                    run_cases(name, seed, range(share, count, shares), Path(folder, "case"), before),
                    time.monotonic() - start,
                )
            )
    faulthandler.cancel_dump_traceback_later()
    queue.put(None)


def limit_memory():
    """Let the address space grow by SPACE_BYTES and no more."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + SPACE_BYTES, resource.RLIM_INFINITY))


def report(results):
    """Print a line a kind and every escape; the escapes."""
    escapes = [found for found in results if isinstance(found, str)]
    by_kind = {}
    for name, tally, seconds in (found for found in results if not isinstance(found, str)):
        by_kind.setdefault(name, []).append((tally, seconds))
        escapes += tally.escapes
    total = 0
    for name, parts in by_kind.items():
        outcomes = sum((tally.outcomes for tally, _ in parts), start=type(parts[0][0].outcomes)())
        total += outcomes.total()
        slowest = max(tally.slowest for tally, _ in parts)
        grown = max(tally.grown_bytes for tally, _ in parts)
        counts = ", ".join(f"{count} {what}" for what, count in outcomes.most_common())
        print(
            f"{name:13} {outcomes.total():7} cases, {sum(s for _, s in parts):6.1f} s, "
            f"slowest {slowest[0]:.2f} s ({slowest[1]}), memory +{grown >> 20} MiB: {counts}"
        )
    print(f"{total} cases, {len(escapes)} escapes")
    print(*escapes, sep="\n")
    return escapes


if __name__ == "__main__":
    main()
