"""The record: exactly the agreed keys, one line, honest numbers."""

from __future__ import annotations

import json
import math

import pytest

from ktitan.bench.result import Result

KEYS = [
    *("case", "metric", "value", "unit", "ceiling", "share_of_ceiling"),
    *("peer", "peer_value", "ratio_to_peer", "runs", "spread"),
]


def test_json_has_the_agreed_keys_in_order():
    fields = json.loads(Result("c", "m", 2.0, "GB/s").to_json())
    assert list(fields) == KEYS
    assert fields == {"case": "c", "metric": "m", "value": 2.0, "unit": "GB/s", **dict.fromkeys(KEYS[4:])}


def test_json_is_one_line_with_six_digits():
    line = Result("c", "a\nb", 123.456789, "GB/s", peer="é", peer_value=1e-9 / 3, runs=12345678).to_json()
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["value"], fields["peer_value"]) == (123.457, 3.33333e-10)
    assert (fields["metric"], fields["peer"], fields["runs"]) == ("a\nb", "é", 12345678)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_figure_is_not_a_number(value):
    with pytest.raises(ValueError, match="JSON"):
        Result("c", "m", value, "GB/s").to_json()
