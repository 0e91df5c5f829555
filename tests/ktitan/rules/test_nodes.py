"""Plain scalars by YAML 1.2, descriptions, and Python structures as nodes."""

import math

import pytest

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.nodes import Location, MapNode, describe, resolve_plain
from ktitan.rules.objects import read_object


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("+3", 3),
        ("010", 10),  # 8 in YAML 1.1
        ("0x1F", 31),
        ("0o17", 15),
        ("1e5", 1e5),  # text in YAML 1.1
        ("1.5", 1.5),
        (".5", 0.5),
        ("2.", 2.0),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),  # false in YAML 1.1
        ("on", "on"),
        ("1:30", "1:30"),  # 90 in YAML 1.1
        ("1_000", "1_000"),  # 1000 in YAML 1.1
        ("2026-11-30", "2026-11-30"),  # a date in YAML 1.1
        ("cuda:0", "cuda:0"),
        ("3-60", "3-60"),
        ("9" * 5000, "9" * 5000),
        ("1e99999", "1e99999"),
        (".", "."),
        ("-", "-"),
    ],
)
def test_resolve_plain(text, value):
    resolved = resolve_plain(text)
    assert resolved == value
    assert type(resolved) is type(value)


def test_nan():
    assert math.isnan(resolve_plain(".nan"))


def test_location_text():
    assert str(Location("a/b.yaml", 12)) == "a/b.yaml:12"
    assert str(Location("rules[3].match")) == "rules[3].match"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x" * 200, f"text '{'x' * 77}...'"),
        (5, "number 5"),
        (True, "true"),
        (None, "nothing"),
        ([1], "a list"),
        ({"a": 1}, "a mapping"),
    ],
)
def test_describe(value, words):
    root = read_object({"k": value}, "", FaultLog())
    assert isinstance(root, MapNode)
    assert describe(root.entries["k"].value) == words


def test_places_in_an_object():
    log = FaultLog()
    root = read_object({"rules": [{"match": {"name": object()}}, {1: 2}]}, "", log)
    assert isinstance(root, MapNode)
    assert [(fault.where, fault.message) for fault in log.faults()] == [
        ("rules[0].match.name", "an object of type object"),
        ("rules[1]", "key 1 is not text"),
    ]


def test_an_object_that_holds_itself():
    loop: list = []
    loop += [loop, loop, loop]
    log = FaultLog()
    read_object(loop, "mine", log)
    assert [fault.where for fault in log.faults()] == ["mine"]


def test_an_object_with_too_many_values():
    row = [0] * 1000
    for rows, faults in ((90, 0), (110, 1)):
        log = FaultLog()
        read_object([row] * rows, "", log)
        assert len(log.faults()) == faults
