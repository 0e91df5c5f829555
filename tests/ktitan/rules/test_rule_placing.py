"""Placements before rules: the first wins, operators stay, and the notes are rules that read as themselves."""

from ktitan.rules import Location, Placement, parse_text, place_first

MODULES = {
    f"m.layers.{layer}{part}": (("Linear", "torch.nn.Linear"),)
    for layer in range(4)
    for part in ("", ".mlp", ".mlp.up")
}
RULES = """
version: 1
rules:
  - match: {name: '.*\\.mlp', layers: 0-1}
    replace: {class: mlp.own, kwargs: {size: 3, device: 'cuda:1', home: vram}}
    recursive: false
  - match: {class: Linear, layers: 2}
    replace: {class: [linear.cpu, linear.torch]}
"""
FIRST = Placement(tuple(f"m.layers.{n}.mlp" for n in (0, 1, 3)), "cpu", Location("--first"))
SECOND = Placement(tuple(MODULES), "cuda:0", Location("--second"))


def placed():
    return place_first(parse_text(RULES), [FIRST, SECOND], MODULES)


def decided(path):
    rule = next(rule for rule in placed().rules if rule.match.hits(path, MODULES[path]))
    return rule.replace.operators, dict(rule.replace.placement), str(rule.location)


def test_the_first_placement_wins_and_the_operator_stays():
    assert decided("m.layers.1.mlp") == (("mlp.own",), {"device": "cpu"}, "--first")  # the home was the old device's
    assert decided("m.layers.3.mlp") == (("keep",), {"device": "cpu"}, "--first")
    assert decided("m.layers.2") == (("linear.cpu", "linear.torch"), {"device": "cuda:0"}, "--second")
    assert decided("m.layers.0") == (("keep",), {"device": "cuda:0"}, "--second")


def test_kwargs_and_recursive_stay():
    rule = next(rule for rule in placed().rules if rule.replace.operator == "mlp.own")
    assert (dict(rule.replace.kwargs), rule.recursive) == ({"size": 3}, False)


def test_the_notes_are_rules():
    notes = placed().notes
    assert [str(note.places[0]) for note in notes] == ["--first", "--second"]
    texts = [note.message.removeprefix("became ") for note in notes]
    again = [rule for text in texts for rule in parse_text(f"version: 1\n{text}\n").rules]
    assert tuple(again) == placed().rules[: len(again)]


def test_nothing_to_place_is_said():
    rules = place_first(parse_text(RULES), [Placement((), "cpu", Location("--none"))], MODULES)
    assert [str(note) for note in rules.notes] == ["--none: became no rules: there is nothing to place"]
    assert rules == parse_text(RULES)
