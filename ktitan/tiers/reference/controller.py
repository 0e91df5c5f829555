"""Whether reading ahead pays, and how much of it, decided as csrc/tiers/controller.cpp decides it, which says why."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Controller", "GuessStep", "guess_fits"]

MODES = ("off", "on", "auto")
MOST_DECODED = 8
SETTLING, COUNTED = 2, 4
WINDOW = SETTLING + COUNTED
PAIRS, CLEAR_PAIRS, CLEAR = 6, 4, 10
BEGIN, GO_ON, OTHER_LEVEL = 50, 200, 100
BUSY, RECENT, BUSY_OF_RECENT = 25, 8, 6
COLD_WAIT, FIRST_WAIT, MOST_WAIT, LOST = 16, 64, 1024, 200
STRETCH, OTHER_COST, OTHER_IDLE = 16, 10, 8
FIRST_RESTART = 32


@dataclass(frozen=True, slots=True)
class GuessStep:
    """A step of the model as measured, in ns (`kt_guess_step`)."""

    wall_ns: int
    stall_ns: int
    overhead_ns: int
    idle_ns: int
    tokens: int = 1

    @property
    def lost_ns(self) -> int:
        """What a change of regime shows in."""
        return self.stall_ns + self.overhead_ns


def guess_fits(room_ns: int, read_ns: int, right: int) -> bool:
    """Is a guess worth its place in so much idle time, when `right` of 1024 are used?"""
    return room_ns * 1024 >= read_ns * (1024 - right)


@dataclass(slots=True)
class _Comparison:
    """Steps of `rival` guesses in a call, in turn with those of the present level, which come first."""

    rival: int
    by_regime: bool
    window: int = 0
    mine: list[list[int]] = field(default_factory=list)  # times, by window
    its: list[list[int]] = field(default_factory=list)
    steps: list[GuessStep] = field(default_factory=list)  # of this window

    @property
    def of_rival(self) -> bool:
        """Whether this window is the rival's: A B B A A B B A ..."""
        return (self.window + 1) // 2 % 2 == 1

    def note(self, step: GuessStep) -> bool:
        """Is it over?"""
        self.steps.append(step)
        if len(self.steps) < WINDOW:
            return False
        counted, self.steps = self.steps[SETTLING:], []
        (self.its if self.of_rival else self.mine).append([one.wall_ns for one in counted])
        self.window += 1
        pairs, half = divmod(self.window, 2)
        clear = not half and abs(_middle(self.mine) - _middle(self.its)) * CLEAR > _middle(self.mine)
        return not half and (pairs == PAIRS or (pairs >= CLEAR_PAIRS and clear))


class Controller:
    """Decides how many guesses a call may make.

    Args:
        mode: of `MODES`.
        full: guesses in a call to begin with.
    """

    def __init__(self, mode: str, full: int) -> None:
        self._mode = mode
        self._full = self._last_level = max(full, 1)
        self._level = self._full if mode == "on" else 0
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._saturated = False
        self._comparison: _Comparison | None = None
        self._opponent = 0
        self._wait, self._spacing, self._restart, self._since = COLD_WAIT, FIRST_WAIT, FIRST_RESTART, 0
        self._stretch: list[GuessStep] = []
        self._base: tuple[int, int, int] | None = None
        self.gain = 0

    @property
    def level(self) -> int:
        """Guesses that a call may make now; 0: off."""
        if self._saturated:
            return 0
        comparison = self._comparison
        return comparison.rival if comparison is not None and comparison.of_rival else self._level

    def step(self, step: GuessStep) -> int:
        """Note a step; the level of the next one."""
        if self._mode != "auto":
            return self._level
        if step.tokens > MOST_DECODED or step.wall_ns <= 0:
            if self._comparison is not None:
                self._comparison.steps.clear()
            return self.level
        compared = self._comparison
        self._note_busy(step)
        if not self._saturated and compared is not None:
            if compared.note(step):
                self._finish(compared)
        elif not self._saturated and self._comparison is None:
            self._steady_step(step)
        return self.level

    def _note_busy(self, step: GuessStep) -> None:
        self._recent.append(step.idle_ns * BUSY < step.wall_ns)
        if len(self._recent) < RECENT:
            return
        busy = sum(self._recent)
        if not self._saturated and busy >= BUSY_OF_RECENT:
            self._saturated, self._comparison = True, None
            self._last_level = self._level or self._last_level
            self._level = 0
        elif self._saturated and busy <= RECENT - BUSY_OF_RECENT:
            self._saturated = False
            self._spacing, self._restart = FIRST_WAIT, FIRST_RESTART
            self._compare(by_regime=False)

    def _compare(self, by_regime: bool) -> None:
        rival = self._last_level
        if self._level:
            which = 0 if by_regime else self._opponent % 3
            self._opponent += not by_regime
            rival = (0, min(2 * self._level, 2 * self._full), max(self._level // 2, 1))[which]
            rival = 0 if rival == self._level else rival
        self._comparison = _Comparison(rival, by_regime)

    def _finish(self, comparison: _Comparison) -> None:
        own, other = _middle(comparison.mine), _middle(comparison.its)
        rival, saved, wall = comparison.rival, own - other, own
        if not self._level or not rival:
            self.gain = -saved if self._level else saved
        if not self._level:
            changes = saved * BEGIN > wall
        else:
            changes = saved * OTHER_LEVEL > wall if rival else saved * GO_ON > -wall
        lost = saved if changes else -saved
        if changes:
            self._last_level = self._last_level if rival else self._level
            self._level, self._opponent = rival, 0
        self._spacing = FIRST_WAIT if changes else min(2 * self._spacing, MOST_WAIT)
        if changes:
            self._restart = FIRST_RESTART
        elif comparison.by_regime:
            self._restart = min(2 * self._restart, MOST_WAIT)
        steps = len(comparison.its) * WINDOW
        self._wait = max(self._spacing, steps * LOST * lost // (wall + 1)) if lost > 0 else self._spacing
        if changes or comparison.by_regime:
            self._base = None
        self._comparison, self._since = None, 0
        self._stretch.clear()

    def _steady_step(self, step: GuessStep) -> None:
        self._since += 1
        self._wait -= 1
        if self._wait <= 0:
            self._compare(by_regime=False)
            return
        self._stretch.append(step)
        if len(self._stretch) < STRETCH:
            return
        costs = _middle([[one.lost_ns for one in self._stretch]])
        idles = _middle([[one.idle_ns for one in self._stretch]])
        walls = _middle([[one.wall_ns for one in self._stretch]])
        self._stretch.clear()
        if self._base is None:
            self._base = (costs, idles, walls)
            return
        base_cost, base_idle, base_wall = self._base
        other_cost = abs(costs - base_cost) * OTHER_COST > base_wall
        other = other_cost or abs(idles - base_idle) * OTHER_IDLE > base_wall
        if other and self._since >= self._restart:
            self._compare(by_regime=True)


def _middle(windows: Sequence[Sequence[int]]) -> int:
    """The mean of the middle half."""
    values = sorted(value for window in windows for value in window)
    cut = len(values) // 4
    kept = values[cut : len(values) - cut]
    return sum(kept) // len(kept)
