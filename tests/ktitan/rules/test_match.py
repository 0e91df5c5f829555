"""Which modules a `Match` hits."""

import re

import pytest

from ktitan.rules import LayerSet, Match, layer_of, parse_text

LINEAR = [
    ("Quantized", "mine.layers.Quantized"),
    ("Linear", "torch.nn.modules.linear.Linear"),
    ("Module", "torch.nn.modules.module.Module"),
    ("object", "builtins.object"),
]


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("model.layers.17.mlp", 17),
        ("model.layers.3.mlp.experts.9.up_proj", 3),
        ("0.linear", 0),
        ("lm_head", None),
        ("", None),
        ("model.layer3.mlp", None),
        ("model.layers.٣.mlp", None),  # a digit, but no whole number that a module list would write
    ],
)
def test_layer_of(path, layer):
    assert layer_of(path) == layer


@pytest.mark.parametrize(
    ("pattern", "path", "hit"),
    [
        (r"layers\.1", "model.layers.1", False),
        (r"model\.layers\.1", "model.layers.10", False),
        (r"model\.layers\.1", "model.layers.1", True),
        (r"^model\.layers\.\d+$", "model.layers.10", True),
        (r".*", "", True),
        (r".*\.mlp", "a.mlp.b", False),
    ],
)
def test_name_matches_the_whole_path(pattern, path, hit):
    assert Match(name=re.compile(pattern)).hits(path, LINEAR) is hit


@pytest.mark.parametrize(
    ("cls", "hit"),
    [
        ("Quantized", True),
        ("Linear", True),
        ("torch.nn.modules.linear.Linear", True),
        ("mine.layers.Quantized", True),
        ("torch.nn.Linear", False),  # a re-export: the class's own module counts
        ("linear.Linear", False),
        ("linear", False),
        ("Lin", False),
    ],
)
def test_class_is_compared_with_every_base(cls, hit):
    assert Match(cls=cls).hits("model.up_proj", LINEAR) is hit


def test_layers_and_all_conditions_together():
    match = Match(re.compile(r".*_proj"), "Linear", LayerSet(((3, 5), (9, None))))
    hits = {path for path in (f"model.layers.{n}.up_proj" for n in range(12)) if match.hits(path, LINEAR)}
    assert hits == {f"model.layers.{n}.up_proj" for n in (3, 4, 5, 9, 10, 11)}
    assert not match.hits("model.up_proj", LINEAR)
    assert not match.hits("model.layers.4.norm", LINEAR)
    assert not match.hits("model.layers.4.up_proj", LINEAR[2:])


def test_exceptions_take_out_what_any_of_them_hits():
    text = r"""
version: 1
rules:
  - match:
      class: Linear
      not:
        - {name: .*\.gate, layers: "0-1"}
        - {class: Quantized}
    replace: {class: keep}
"""
    match = parse_text(text).rules[0].match
    plain = LINEAR[1:]
    assert match.hits("layers.2.gate", plain)
    assert match.hits("layers.1.up", plain)
    assert not match.hits("layers.1.gate", plain)
    assert not match.hits("layers.2.up", LINEAR)


def test_layer_set():
    layers = LayerSet(((0, 0), (2, 4), (12, None)))
    assert [n for n in range(15) if n in layers] == [0, 2, 3, 4, 12, 13, 14]
    assert None not in layers
    assert str(layers) == "0,2-4,12-"


def test_text_of_a_match():
    match = Match(re.compile(r"a\.b"), "Linear", LayerSet(((1, 2),)), (Match(cls="Gate"),))
    assert str(match) == r"name a\.b, class Linear, layers 1-2, not (class Gate)"


@pytest.mark.parametrize(
    ("layers", "text"),
    [([3], "3"), ([0, 1, 2], "0-2"), ([5, 0, 1, 2, 9, 8], "0-2,5,8-9"), ([1, 1], "1"), ([2, 4], "2,4"), ([], "")],
)
def test_layers_become_ranges(layers, text):
    made = LayerSet.of(layers)
    assert str(made) == text
    assert [layer for layer in range(12) if layer in made] == sorted(set(layers))
