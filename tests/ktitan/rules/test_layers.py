"""`layers:` in all its spellings."""

import pytest

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.layers import parse_layers
from ktitan.rules.nodes import ListNode, Location, ScalarNode, resolve_plain

AT = Location("r.yaml", 4)


def scalar(text):
    return ScalarNode(AT, resolve_plain(text), text)


def parse(spec):
    log = FaultLog()
    node = ListNode(AT, tuple(map(scalar, spec))) if isinstance(spec, list) else scalar(spec)
    return parse_layers(node, log), log.faults()


@pytest.mark.parametrize(
    ("spec", "ranges"),
    [
        ("7", ((7, 7),)),
        ("0", ((0, 0),)),
        ("3-60", ((3, 60),)),
        ("3 - 60", ((3, 60),)),
        ("12-", ((12, None),)),
        ("0,2,5-7", ((0, 0), (2, 2), (5, 7))),
        ("0, 2, 5-", ((0, 0), (2, 2), (5, None))),
        ("4-4", ((4, 4),)),
        (["1", "3-4", "8-"], ((1, 1), (3, 4), (8, None))),
    ],
)
def test_good(spec, ranges):
    layers, faults = parse(spec)
    assert not faults
    assert layers.ranges == ranges


@pytest.mark.parametrize(
    ("spec", "message", "remedy"),
    [
        ("60-3", "layers 60-3 run backwards", "write 3-60"),
        ("-5", "'-5' is no layer", "3-60"),
        ("-1-5", "'-1-5' is no layer", "3-60"),
        ("1:30", "'1:30' is no layer", "3-60"),
        ("1..3", "'1..3' is no layer", "3-60"),
        ("1,,2", "'' is no layer", "0,2,5-7"),
        ("all", "'all' is no layer", "12-"),
        ("2.5", "found number 2.5", "12-"),
        ("true", "found true", "12-"),
        ("", "found nothing", "12-"),
        ([], "empty list", "12-"),
        (["1", "x"], "'x' is no layer", "12-"),
        ("٣", "'٣' is no layer", "12-"),
        ("9999999999", "'9999999999' is no layer", "12-"),
    ],
)
def test_bad(spec, message, remedy):
    _, faults = parse(spec)
    assert len(faults) == 1
    assert message in faults[0].message
    assert remedy in faults[0].remedy
    assert faults[0].where == "r.yaml:4"


def test_each_bad_part_is_named():
    layers, faults = parse("0,b,9-2,4")
    assert len(faults) == 2
    assert layers.ranges == ((0, 0), (4, 4))
