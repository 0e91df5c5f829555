"""Which experts earlier sessions chose: saved at the end, used at the next start, and never trusted.

A profile only fills slots that would be empty, with records that count for one token in all, so that the first real
demand outweighs any of them: a profile of another subject costs the reads at the start and no hits.

Counts of earlier sessions are halved by each session that chose anything: the one before the last counts a quarter. A
short session so changes little of what a long one found, and nothing is remembered for good.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ktitan.errors import Fault, FormatError, IoError, UnsupportedError
from ktitan.tiers.arrays import is_file, read_arrays, write_arrays

__all__ = ["DECAY", "Profile", "ProfileFile", "Start", "digest_of", "load_profile", "merge", "save_profile", "start_of"]

# What a session leaves of the counts before it.
DECAY = 0.5
# Of a domain's slots, for the policy with pins.
PINNED_SHARE = 0.5
_REMEDY = "give a profile that ktitan wrote, or remove the file: a new one is made"


@dataclass(frozen=True)
class Profile:
    """Choices of one model's experts.

    Attributes:
        tokens: [R] float64, tokens that chose each record, decayed.
        digest: of the records' names, which tells models apart.
        layers: of the model, those with streamed experts.
        sessions: that were merged.
    """

    tokens: np.ndarray
    digest: str
    layers: int
    sessions: int

    def check_like(self, model: Profile, where: str) -> None:
        """Refuse to be taken for another model's.

        Args:
            model: any profile of the model.
            where: what this one was read from.

        Raises:
            UnsupportedError: it has other records.
        """
        if self.digest != model.digest or len(self.tokens) != len(model.tokens):
            raise UnsupportedError(
                f"a profile of another model: {self.layers} layers with {len(self.tokens)} experts in all, "
                f"where this one streams {model.layers} with {len(model.tokens)}, or with other names",
                where,
                "give another file",
            )


@dataclass(frozen=True)
class Start:
    """What a store begins with.

    Attributes:
        seeds: [R], what each record counts for, in tokens; those of a domain make up one at most.
        pinned: [R], which the policy with pins keeps.
        reads: records to read, the most chosen last: it makes room last.
    """

    seeds: tuple[float, ...]
    pinned: tuple[bool, ...]
    reads: tuple[int, ...]


def digest_of(names: Sequence[str]) -> str:
    """Of the names of a model's records, in order."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def load_profile(path: str | Path) -> Profile:
    """Read a profile.

    Raises:
        FormatError: it is none.
        IoError: it cannot be read.
    """
    found = read_arrays(path, "profile")
    wanted = {"tokens": ("f", 1), "digest": ("U", 0), "layers": ("i", 0), "sessions": ("i", 0)}
    faults = [
        Fault(f"this is no profile: no array {name} of this kind", str(path), _REMEDY)
        for name, (kind, dimensions) in wanted.items()
        if name not in found or found[name].dtype.kind != kind or found[name].ndim != dimensions
    ]
    if not faults and not (np.isfinite(found["tokens"]).all() and (found["tokens"] >= 0).all()):
        faults = [Fault("this is no profile: tokens are negative or no numbers", str(path), _REMEDY)]
    if faults:
        raise FormatError.from_faults(faults, f"{len(faults)} faults in the profile {path}")
    tokens = found["tokens"].astype(np.float64, copy=False)
    return Profile(tokens, str(found["digest"]), int(found["layers"]), int(found["sessions"]))


def save_profile(path: str | Path, profile: Profile) -> None:
    """Write a profile; the file is there as a whole or not at all.

    Raises:
        IoError: it cannot be written.
    """
    arrays: dict[str, np.ndarray] = {
        "tokens": profile.tokens,
        "digest": np.array(profile.digest),
        "layers": np.array(profile.layers),
        "sessions": np.array(profile.sessions),
    }
    write_arrays(path, arrays, "profile")


def merge(before: Profile, tokens: np.ndarray, *, begins: bool) -> Profile:
    """A session's counts joined to those before it.

    Args:
        before: what was there.
        tokens: [R], tokens that chose each record since the last time this session was merged.
        begins: it is the session's first time.
    """
    if not tokens.any():
        return before
    kept = before.tokens * DECAY if begins else before.tokens
    return Profile(kept + tokens, before.digest, before.layers, before.sessions + begins)


def start_of(tokens: np.ndarray, domain_of: Sequence[int], domain_slots: Sequence[int]) -> Start:
    """What to begin with after these counts [R], for records of these domains with so many slots."""
    domains = np.asarray(domain_of)
    totals = np.bincount(domains, tokens, len(domain_slots))
    seeds = tokens / np.maximum(totals, 1e-300)[domains]
    pinned, reads = np.zeros(len(tokens), bool), []
    for domain, slots in enumerate(domain_slots):
        records = np.flatnonzero((domains == domain) & (tokens > 0))
        best = records[np.argsort(-tokens[records], kind="stable")][:slots]
        pinned[best[: int(slots * PINNED_SHARE)]] = True
        reads += best.tolist()
    reads.sort(key=lambda record: (tokens[record], -record))
    return Start(tuple(seeds.tolist()), tuple(pinned.tolist()), tuple(reads))


class ProfileFile:
    """The file of a profile during one session.

    Args:
        path: of the file; the first session makes it.

    Attributes:
        path: of the file.
        found: what was there at the start, or None.

    Raises:
        FormatError: there is something else.
        IoError: it cannot be read, or its folder is not there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        is_there = is_file(self.path, "profile")
        if not self.path.absolute().parent.is_dir():
            raise IoError("its folder is not there", str(path), "make the folder, or name another file")
        self.found = load_profile(path) if is_there else None
        self._saved: np.ndarray | None = None
        self._lock = threading.Lock()

    def save(self, session: Profile) -> None:
        """Merge all that this session chose so far with what is in the file now; may be called again.

        Raises:
            UnsupportedError: the file has become another model's.
            FormatError, IoError: as at the start, or it cannot be written.
        """
        if not session.tokens.any():
            return
        with self._lock:
            there = load_profile(self.path) if is_file(self.path, "profile") else None
            if there is None:
                merged = session
            else:
                there.check_like(session, str(self.path))
                # Another thread may have saved more than this one had seen.
                fresh = session.tokens if self._saved is None else np.maximum(session.tokens - self._saved, 0)
                merged = merge(there, fresh, begins=self._saved is None)
            save_profile(self.path, merged)
            self._saved = session.tokens if self._saved is None else np.maximum(session.tokens, self._saved)
