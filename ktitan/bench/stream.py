"""`ktitan bench stream MODEL`: decode with less RAM than the model has bytes, beside a peer with the same memory.

Every run is a process of its own that starts with nothing of the model in the page cache, in a memory group of the same
size. Rounds run this engine, the peer, the drive at the size of a record and the model in RAM without a limit in turn:
a token cannot be faster than the drive brings what is missing, nor than the model computes when nothing is.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ktitan.bench.confine import MemoryGroup, memory_group
from ktitan.bench.drive_state import drop_cached, read_ahead
from ktitan.bench.record_reads import RecordReads
from ktitan.bench.result import Result
from ktitan.bench.stream_report import Conditions, Round, Side, stream_results
from ktitan.bench.synthetic import Shape, write_model
from ktitan.bench.worker import Worker
from ktitan.env import given_variables
from ktitan.errors import BudgetError, UnsupportedError
from ktitan.hardware import Hardware, detect
from ktitan.tiers import parse_bytes
from ktitan.tiers.options import parse_cache

__all__ = ["Case", "run"]

logger = logging.getLogger("ktitan.bench.stream")

PEERS = ("llamacpp", "ktitan")
# What a process may need beyond its budget and the program itself.
SLACK_BYTES = 64 << 20
_PAGE_TOKENS = 64
# A model that takes more than this share of what is free is not run in RAM for comparison.
_MOST_RESIDENT = 0.8
_ONE_LAYER = Shape(
    layers=1, hidden=256, heads=4, kv_heads=2, head_dim=64, experts=8, chosen=2, intermediate=256, vocabulary=512
)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        model: what `ktitan.load` takes; the peer reads a `.gguf` only.
        limit: bytes of the memory group of either side; "50%": that share of the model's files beside the program;
            None: no group.
        ram: budget of the streamed run; None: the limit less the program's own memory and `SLACK_BYTES`.
        rules: rules of the streamed run; None: auto.
        cache: cache options of the streamed run (`ktitan.tiers.options`); None: by measurement.
        peer: "llamacpp"; "ktitan": this engine on other files (GGUF against native, one drive against two) or with
            other cache options; or None.
        peer_python: the interpreter that has it; None: this one.
        peer_model: what the peer reads; None: the same.
        peer_cache: cache options of the peer "ktitan"; None: those of the streamed run.
        prompt, tokens: random ids, run at once and then one at a time.
        pairs: rounds.
        threads: of all sides; None: the usable CPUs.
        resident: compare with the model in RAM, where it fits.
        seed: of the ids.
    """

    model: str
    limit: str | None = None
    ram: str | None = None
    rules: str | None = None
    cache: str | None = None
    peer: str | None = None
    peer_python: str | None = None
    peer_model: str | None = None
    peer_cache: str | None = None
    prompt: int = 8
    tokens: int = 128
    pairs: int = 3
    threads: int | None = None
    resident: bool = True
    seed: int = 0


def run(case: Case, *, hardware: Hardware | None = None, progress: Progress = logger.info) -> list[Result]:
    """Measure `case`; first that the streamed model gives the same bits as the one in RAM.

    Raises:
        UnsupportedError: an option is not possible, a side cannot run, nothing is streamed, or the bits differ.
        BudgetError: the limit leaves nothing for weights.
        HardwareError: memory groups cannot be made.
        WeightError, FormatError, IoError: the model cannot be loaded.
    """
    from ktitan.api import set_threads

    _check(case)
    hardware = hardware or detect()
    case = replace(case, threads=set_threads(case.threads))
    files = _files(case.model)
    progress("measuring the program itself")
    program_bytes = _program_bytes(case)
    limit_bytes, ram_bytes = _sizes(case, sum(path.stat().st_size for path in files), program_bytes)
    with ExitStack() as stack:
        stack.enter_context(_tidy_end())
        ahead = stack.enter_context(read_ahead(files))
        bench = _Bench(case, files, limit_bytes, ram_bytes)
        resident = bench.resident(hardware, progress)
        if resident is not None:
            stack.enter_context(resident)
        rounds = bench.rounds(resident, progress)
    conditions = Conditions(Path(case.model).stem, case, limit_bytes, ram_bytes, program_bytes, SLACK_BYTES, ahead)
    return stream_results(conditions, rounds)


@contextmanager
def _tidy_end() -> Iterator[None]:
    """Let SIGTERM unwind as Ctrl-C does: groups are removed, programs ended, the read-ahead put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(case: Case) -> None:
    if case.limit is None and case.ram is None:
        raise UnsupportedError("nothing limits the memory", "--limit, --ram", "give --limit 50%, or --ram 2GiB")
    if case.peer is not None and case.peer not in PEERS:
        raise UnsupportedError(f"no peer {case.peer!r}", "--peer", f"known: {', '.join(PEERS)}")
    peer_model = case.peer_model or case.model
    for options in (case.cache, case.peer_cache):
        parse_cache(options)
    if case.peer == "ktitan" and case.peer_model is None and case.peer_cache is None:
        remedy = "give --peer-model, the other files, or --peer-cache"
        raise UnsupportedError("both sides would be the same", "--peer ktitan", remedy)
    if case.peer == "llamacpp" and not peer_model.endswith(".gguf"):
        raise UnsupportedError("llama.cpp reads GGUF files only", peer_model, "give the .gguf as --peer-model")


def _files(model: str) -> list[Path]:
    """The files with the model's weights: those named, and of a folder those of the formats that hold weights."""
    from ktitan.api import locate_model

    found: list[Path] = []
    for path in locate_model(model).weights:
        entries = sorted(path.iterdir()) if path.is_dir() else [path]
        for link in [entry for entry in entries if entry.is_symlink() and entry.is_dir()]:
            entries += sorted(link.iterdir())  # the part of a native model on a further drive
        found += [file for file in entries if file.suffix in (".gguf", ".safetensors")]
    return found


def _program_bytes(case: Case) -> int:
    """Peak of the same program with a model of one small layer."""
    with tempfile.TemporaryDirectory(prefix="ktitan-bench-") as folder:
        path = Path(folder) / "one-layer.gguf"
        write_model(path, _ONE_LAYER)
        with Worker(_our_command(case, str(path), None, None), None, given_variables()) as worker:
            _answer(worker, worker.line(), "the program with one layer")
            ids = [3 + n % (_ONE_LAYER.vocabulary - 3) for n in range(case.prompt)]
            _answer(worker, worker.ask(json.dumps([ids, ids])), "the program with one layer")
            return worker.peak_bytes()


def _sizes(case: Case, model_bytes: int, program_bytes: int) -> tuple[int | None, int]:
    """Bytes of the group, and of the budget in it."""
    limit_bytes: int | None = None
    if case.limit is not None:
        share = case.limit.strip().removesuffix("%")
        if share != case.limit.strip():
            try:
                limit_bytes = int(model_bytes * float(share) / 100) + program_bytes + SLACK_BYTES
            except ValueError as error:
                raise UnsupportedError(f"{case.limit!r} is no share", "--limit", "write 50% or 2GiB") from error
        else:
            limit_bytes = parse_bytes(case.limit)
    ram_bytes = parse_bytes(case.ram) if case.ram is not None else (limit_bytes or 0) - program_bytes - SLACK_BYTES
    if ram_bytes <= 0:
        raise BudgetError(
            f"the program itself takes {program_bytes + SLACK_BYTES} bytes", "--limit", "give a larger limit"
        )
    return limit_bytes, ram_bytes


def _our_command(case: Case, model: str, budget: str | None, rules: str | None, cache: str | None = None) -> list[str]:
    options = {
        "model": model,
        "budget": budget,
        "rules": rules,
        "cache": cache,
        "threads": case.threads,
        # Whole pages of keys and values: the budget holds no more of them than the context needs.
        "context": -(-(case.prompt + case.tokens + 1) // _PAGE_TOKENS) * _PAGE_TOKENS,
    }
    return [sys.executable, "-P", "-m", "ktitan.bench.stream_worker", json.dumps(options)]


def _peer_command(case: Case, file: str) -> list[str]:
    script = str(Path(__file__).with_name("peer_llamacpp.py"))
    python, positions = case.peer_python or sys.executable, str(case.prompt + case.tokens)
    return [python, "-P", script, file, str(case.threads), positions, "as-stored"]


def _answer(worker: Worker, line: str, who: str, group: MemoryGroup | None = None) -> Any:
    """What a worker's line says.

    Raises:
        UnsupportedError: it ended, or says why it cannot.
    """
    if not line:
        killed = group is not None and group.kills() > 0
        why = "the kernel killed it for want of memory" if killed else worker.last_words()
        remedy = "give a larger --limit" if killed else "run it by itself, and report it with `ktitan doctor`"
        raise UnsupportedError(f"{who} ended without an answer: {why}", "--limit" if killed else "", remedy)
    try:
        found = json.loads(line)
    except ValueError as error:
        remedy = 'CMAKE_ARGS="-DGGML_NATIVE=ON" pip install llama-cpp-python, and name its Python by --peer-python'
        raise UnsupportedError(line, who, remedy) from error
    if isinstance(found, dict) and "error" in found:
        raise UnsupportedError(found["error"], found["where"] or who, found["remedy"])
    return found


class _Bench:
    """The rounds of one case."""

    def __init__(self, case: Case, files: Sequence[Path], limit_bytes: int | None, ram_bytes: int) -> None:
        self.case = case
        self.files = files
        self.limit_bytes = limit_bytes
        self.ram_bytes = ram_bytes
        self.request = ""
        self.vocabulary = 0

    def resident(self, hardware: Hardware, progress: Progress) -> Worker | None:
        """The model in RAM, ready; None where it does not fit or is not wanted."""
        size = sum(path.stat().st_size for path in self.files)
        if not self.case.resident or size > _MOST_RESIDENT * hardware.memory.available_bytes:
            return None
        progress("loading the model into RAM")
        worker = Worker(_our_command(self.case, self.case.model, None, None), None, given_variables())
        try:
            self._see(_answer(worker, worker.line(), "the model in RAM"))
        except BaseException:
            worker.close()
            raise
        return worker

    def rounds(self, resident: Worker | None, progress: Progress) -> list[Round]:
        """All rounds; every other one in reverse order."""
        found = []
        for number in range(self.case.pairs):
            progress(f"round {number + 1} of {self.case.pairs}")
            found.append(self._round(resident, bool(number % 2)))
        return found

    def _round(self, resident: Worker | None, reverse: bool) -> Round:
        sides: dict[str, Callable[[], Side]] = {"ours": self._ours}
        if self.case.peer is not None:
            sides["peer"] = self._peer
        done: dict[str, Side] = {}
        for name in sorted(sides, reverse=reverse and bool(self.request)):
            done[name] = sides[name]()
        drive, how = self._drive_rate(done["ours"].about["record_bytes"])
        beside = None
        if resident is not None:
            answer = _answer(resident, resident.ask(self.request), "the model in RAM")
            beside = Side({}, answer, 0, 0)
            _check_bits(done["ours"].answer, answer, "the model in RAM")
        if self.case.peer == "ktitan":
            _check_bits(done["ours"].answer, done["peer"].answer, "the peer")
        return Round(done["ours"], done.get("peer"), beside, drive, how, os.getloadavg()[0])

    def _drive_rate(self, record_bytes: int) -> tuple[float | None, str]:
        with RecordReads(self.files, record_bytes or 1 << 20) as reads:
            return (reads.rate(), reads.how) if reads.possible else (None, "")

    def _ours(self) -> Side:
        case = self.case
        command = _our_command(case, case.model, f"ram={self.ram_bytes}", case.rules, case.cache)
        return self._cold(command, self.files, "the streamed model")

    def _peer(self) -> Side:
        file = self.case.peer_model or self.case.model
        if self.case.peer == "ktitan":
            cache = self.case.peer_cache or self.case.cache
            command = _our_command(self.case, file, f"ram={self.ram_bytes}", self.case.rules, cache)
            return self._cold(command, _files(file), "the peer")
        return self._cold(_peer_command(self.case, file), [Path(file)], "llama.cpp")

    def _cold(self, command: list[str], files: Sequence[Path], who: str) -> Side:
        """A run from a cold start, in a group of its own."""
        drop_cached(files)
        with ExitStack() as stack:
            group = None if self.limit_bytes is None else stack.enter_context(memory_group(self.limit_bytes))
            worker = stack.enter_context(Worker(command, group, given_variables()))
            line = worker.line()
            about = {} if line == "ready" else _answer(worker, line, who, group)
            self._see(about)
            load_bytes = worker.drive_bytes()
            answer = _answer(worker, worker.ask(self.request), who, group)
            if isinstance(answer, list):
                answer = dict(zip(("prefill", "steps", "read_bytes"), answer, strict=True))
            return Side(about, answer, load_bytes, worker.peak_bytes())

    def _see(self, about: dict[str, Any]) -> None:
        """Make the request once the vocabulary's size is known."""
        if about and not self.request:
            count = self.case.prompt + self.case.tokens
            ids = np.random.default_rng(self.case.seed).integers(3, about["vocabulary"], count).tolist()
            self.request = json.dumps([ids[: self.case.prompt], ids[self.case.prompt :]])
        if about.get("streams") is False and about.get("budgeted"):
            remedy = "give a smaller --limit or --ram, or rules with streamed operators"
            raise UnsupportedError("the model fits into the budget, so nothing is streamed", self.case.model, remedy)


def _check_bits(ours: dict[str, Any], other: dict[str, Any], who: str) -> None:
    """No speed for other numbers.

    Raises:
        UnsupportedError: logits of the prompt or choices along the way differ.
    """
    differ = [name for name in ("logits", "chosen") if ours[name] != other[name]]
    if differ:
        what = " and ".join(differ)
        raise UnsupportedError(
            f"{what} of the streamed model differ from those of {who}, so nothing is timed",
            "--rules",
            "compare under rules that differ only in streaming; else report it with `ktitan doctor`",
        )
