"""YAML to nodes: places, merges, and everything that is refused."""

import time

import pytest

from ktitan.rules.faultlog import FaultLog
from ktitan.rules.fields import plain
from ktitan.rules.nodes import MAX_DEPTH, MapNode, ScalarNode
from ktitan.rules.yaml_lines import read_yaml


def read(text):
    log = FaultLog()
    return read_yaml(text, "f.yaml", log), log.faults()


def test_values_and_places():
    node, faults = read("a: 1\nb:\n  - x\n  - {c: 'no', d: no}\n\ne: |\n  text\n  more\n")
    assert not faults
    assert plain(node, FaultLog()) == {"a": 1, "b": ["x", {"c": "no", "d": "no"}], "e": "text\nmore\n"}
    assert isinstance(node, MapNode)
    assert {key: entry.key_location.line for key, entry in node.entries.items()} == {"a": 1, "b": 2, "e": 6}
    inner = node.entries["b"].value.items[1]
    assert str(inner.entries["d"].value.location) == "f.yaml:4"


def test_quoted_scalars_are_text():
    node, _ = read("['5', \"true\", '', 5]")
    assert plain(node, FaultLog()) == ["5", "true", "", 5]


def test_windows_line_ends_count_once():
    node, _ = read("a: 1\r\nb: 2\r\nc: 3\r\n")
    assert node.entries["c"].key_location.line == 3


def test_anchors_and_merges():
    text = """
base: &b {home: ram, device: cpu}
other: &o {tier: vram, home: nvme}
x: {<<: [*b, *o], device: cuda}
y: *b
"""
    node, faults = read(text)
    assert not faults
    values = plain(node, FaultLog())
    assert values["x"] == {"home": "ram", "device": "cuda", "tier": "vram"}
    assert values["y"] == values["base"]
    assert values["y"] is not values["base"]


@pytest.mark.parametrize(
    ("text", "line", "message", "remedy"),
    [
        ("", 1, "is empty", "version: 1"),
        ("# only a comment\n", 1, "is empty", "version: 1"),
        ("a: 1\n---\nb: 2\n", 2, "second YAML document", "one document"),
        ("a: 1\nb: 2\n\na: 3\n", 4, "'a' is given twice (first in line 1)", "keep one"),
        ("x:\n  - {k: 1,\n     k: 2}\n", 3, "'k' is given twice", "keep one"),
        ("? [a, b]\n: 1\n", 1, "a key that is not text", "single words"),
        ("a: *nope\n", 1, "alias *nope is not defined", "quotes"),
        ("a: &node 1\nb: *nod\n", 2, "alias *nod is not defined", "'node'"),
        ("a: 1\nb: &l [1, *l]\n", 2, "stands inside what it names", "cannot hold itself"),
        ("a:\n  <<: 5\n", 2, "takes a mapping", "*name"),
        ("a: 1\n  b: 2\n", 2, "syntax error", "indentation"),
        ("a: [1, 2\nb: 3\n", 2, "syntax error", "brackets"),
        ("a:\n\t- 1\n", 2, "syntax error", "spaces, not tabs"),
        ('a:\n  name: "x\\.y"\n', 2, "unknown escape character", "single quotes"),
        ("a:\n  name: *.experts\n", 2, "syntax error", "any text is .*"),
        ("a: {b: ${gpu}}\n", 1, "syntax error", "'${gpu}'"),
        ("a: 1\nb: \x01\n", 2, "U+0001 is not allowed", "remove"),
        ('a: 1\nb: "\\UFFFFFFFF"\n', 2, "cannot be read", "quotes"),
        ("%YAML " + "1" * 5000 + ".1\n---\na: 1\n", 1, "cannot be read", "line"),
        ("a: !!python/object/apply:os.system [echo]\n", 1, "'!!python/object/apply:os.system' is refused", "remove"),
        ("a: 1\nb: !!python/name:os.system\n", 2, "is refused", "remove"),
        ("a: !mine {b: 1}\n", 1, "'!mine' is refused", "remove"),
        ("a: !!str 5\n", 1, "'!!str' is refused", "quote"),
        ("a: ! x\n", 1, "'!' is refused", "remove"),
    ],
)
def test_faults(text, line, message, remedy):
    _, faults = read(text)
    assert [fault.where for fault in faults] == [f"f.yaml:{line}"]
    assert message in faults[0].message
    assert remedy in faults[0].remedy


def test_reading_goes_on_after_duplicates_and_tags():
    node, faults = read("a: 1\na: 2\nb: !x 3\nc: !!int 4\nd: *e\n")
    assert [fault.where for fault in faults] == ["f.yaml:2", "f.yaml:3", "f.yaml:4", "f.yaml:5"]
    assert node.entries["a"].value.value == 1


def alias_bomb(levels, width):
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [alias_bomb(12, 9), f"a: &a [{', '.join('x' * 300)}]\nm: &m {{{', '.join(f'k{i}: *a' for i in range(400))}}}\n"],
)
def test_alias_bombs_do_not_explode(text):
    start = time.monotonic()
    node, faults = read(text)
    assert node is None
    assert "unfolds to more than" in faults[0].message
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_stops(opening):
    _, faults = read(opening * 3000)
    assert len(faults) == 1
    assert "nested deeper" in faults[0].message


def test_aliases_do_not_get_around_the_depth_limit():
    links = ["a0: &a0 x"] + [f"a{i}: &a{i} {'[' * 30}*a{i - 1}{']' * 30}" for i in range(1, 100)]
    _, faults = read("\n".join(links))
    assert [fault.where for fault in faults] == ["f.yaml:4"]  # 1 + 3 x 30 levels
    assert "nested deeper" in faults[0].message
    _, fine = read("\n".join(links[:3] + [f"b{i}: [*a2, {{c: *a1}}]" for i in range(100)]))
    assert not fine


def test_depth_limit_is_where_it_says():
    _, fine = read("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    _, over = read("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))
    assert not fine
    assert len(over) == 1


def test_scalar_root():
    node, faults = read("just words")
    assert not faults
    assert isinstance(node, ScalarNode)
