"""The one record that every bench writes: a figure beside the ceiling and the peer of the same run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["Result"]

SIGNIFICANT_DIGITS = 6


@dataclass(frozen=True)
class Result:
    """One figure. None stands where a field does not apply.

    Attributes:
        case: what ran, a stable name without spaces: `gemm-bf16-512x4096x2048`.
        metric: what was measured, with the conditions that a reader must know to compare it.
        value: the median over the runs, in `unit`.
        unit: `GB/s` (1e9 bytes), `GFLOP/s`, `GOP/s`, `tokens/s`, ...
        ceiling: what this machine could do at best, measured in the same run, in `unit`.
        share_of_ceiling: median of the shares of the pairs where the ceiling ran beside the case.
        peer: what else did the same work, at its best setting.
        peer_value: the peer's median, in `unit`.
        ratio_to_peer: median of the ratios of interleaved pairs, over 1 where the case is ahead of the peer in `value`.
        runs: how many timed runs the median is taken over.
        spread: interquartile range of the runs' times over their median; over 0.1 the machine was not quiet.
    """

    case: str
    metric: str
    value: float
    unit: str
    ceiling: float | None = None
    share_of_ceiling: float | None = None
    peer: str | None = None
    peer_value: float | None = None
    ratio_to_peer: float | None = None
    runs: int | None = None
    spread: float | None = None

    def to_json(self) -> str:
        """All fields as one line of JSON, floats to six significant digits.

        Raises:
            ValueError: a figure is infinite or not a number, which no JSON reader has to accept.
        """
        fields = {key: _shortened(value) for key, value in asdict(self).items()}
        return json.dumps(fields, allow_nan=False, ensure_ascii=False)


def _shortened(value: object) -> object:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if isinstance(value, float) else value
