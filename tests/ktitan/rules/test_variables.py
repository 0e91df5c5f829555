"""`vars:` and `${name}`."""

import pytest

from ktitan.rules import parse_rules, parse_text
from ktitan.rules.variables import MAX_TEXT


def kwargs_of(variables, value, given=None):
    rule = f"- match: {{name: x}}\n  replace:\n    class: op\n    kwargs: {{k: {value}}}\n"
    text = f"version: 1\nvars: {variables}\nrules:\n{rule}"
    rules = parse_text(text, variables=given)
    return (rules.rules[0].replace.kwargs["k"] if rules.rules else None), rules.faults


@pytest.mark.parametrize(
    ("variables", "value", "expected"),
    [
        ("{gpu: cuda:0}", "'${gpu}'", "cuda:0"),
        ("{n: 8}", "'${n}'", 8),
        ("{n: 8}", "'n=${n}'", "n=8"),
        ("{n: '8'}", "'${n}'", "8"),
        ("{f: 0.50}", "'${f}'", 0.5),
        ("{f: 0.50}", "'<${f}>'", "<0.50>"),
        ("{a: x, b: y}", "'${a}-${b}$'", "x-y$"),
        ("{a: x}", "'$${a}'", "${a}"),
        ("{a: x}", "'$$${a}'", "$${a}"),
        ("{a: x}", "'$a $ $$ }'", "$a $ $$ }"),
        ("{a: x, b: '${a}y', c: '${b}z'}", "'${c}'", "xyz"),
        ("{a: '$${b}'}", "'${a}'", "${b}"),
        ("{a: x}", "['${a}', {m: '${a}'}]", ["x", {"m": "x"}]),
        ("{a-b_1: x}", "'${a-b_1}'", "x"),
    ],
)
def test_interpolation(variables, value, expected):
    found, faults = kwargs_of(variables, value)
    assert not faults
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("variables", "value", "where", "message", "remedy"),
    [
        ("{gpu: cuda:0}", "'${gpo}'", 7, "variable 'gpo' is not defined", "'gpu'"),
        ("{}", "'${gpu}'", 7, "variable 'gpu' is not defined", "define it under `vars:`"),
        ("{a: x}", "'${a'", 7, "'${a' is no reference", "$${"),
        ("{a: x}", "'${ a }'", 7, "is no reference", "$${"),
        ("{a: x}", "'a${2}'", 7, "'${2}' is no reference", "$${"),
        ("{a: x}", "'${}'", 7, "'${}' is no reference", "$${"),
        ("{a: '${b}', b: x}", "1", 2, "variable 'b' is not defined", "define it under `vars:`"),
        ("{a: '${a}'}", "1", 2, "variable 'a' is not defined", "define it under `vars:`"),
        ("{a: [1]}", "'${a}'", 2, "variable 'a' must be text or a number, found a list", "plain"),
        ("{a: true}", "'${a}'", 2, "found true", "plain"),
        ("{a: }", "'${a}'", 2, "found nothing", "plain"),
        ("{2a: x}", "1", 2, "'2a' is no variable name", "letters"),
        ("[a]", "1", 2, "vars must be a mapping, found a list", "name: value"),
        ("5", "1", 2, "vars must be a mapping, found number 5", "name: value"),
    ],
)
def test_faults(variables, value, where, message, remedy):
    _, faults = kwargs_of(variables, value)
    assert len(faults) == 1, faults
    assert faults[0].where == f"<rules>:{where}"
    assert message in faults[0].message
    assert remedy in faults[0].remedy


def test_every_undefined_variable_of_a_value_is_named():
    _, faults = kwargs_of("{}", "'${a}${b}'")
    assert [fault.message for fault in faults] == ["variable 'a' is not defined", "variable 'b' is not defined"]


@pytest.mark.parametrize(("given", "expected"), [("cuda:1", "cuda:1"), ("16", 16), (16, 16), ("${x}", "${x}")])
def test_the_caller_overrides(given, expected):
    found, faults = kwargs_of("{v: cuda:0, unused: '${v}'}", "'${v}'", {"v": given})
    assert not faults
    assert found == expected


def test_the_caller_may_define_what_no_file_does():
    assert kwargs_of("{}", "'${v}'", {"v": "z"}) == ("z", ())


def test_variables_work_in_every_kind_of_value():
    text = r"""
version: 1
vars: {block: mlp, kind: Linear, range: 3-5, op: linear.torch, where: ram, file: a.gguf, last: 7}
rules:
  - match: {name: 'model\.layers\.\d+\.${block}$', class: "${kind}", layers: "${range}"}
    replace: {class: "${op}", kwargs: {home: "${where}"}, source: "${file}"}
  - match: {layers: "${last}", not: {name: '.*\.${block}$'}}
    replace: {class: keep}
"""
    rules = parse_text(text)
    assert not rules.faults
    first, second = rules.rules
    assert first.match.name.pattern == r"model\.layers\.\d+\.mlp$"
    assert first.match.hits("model.layers.4.mlp", [("Linear", "torch.nn.Linear")])
    assert (first.match.cls, str(first.match.layers), first.source) == ("Linear", "3-5", "a.gguf")
    assert (first.replace.operator, first.replace.placement) == ("linear.torch", {"home": "ram"})
    assert str(second.match.layers) == "7"
    assert second.match.exclude[0].name.pattern == r".*\.mlp$"


def test_variables_that_double_do_not_explode():
    lines = ["  a0: xxxxxxxxxx"] + [f"  a{i}: '{f'${{a{i - 1}}}' * 10}'" for i in range(1, 15)]
    rules = parse_text("version: 1\nvars:\n" + "\n".join(lines) + "\nrules: []\n")
    assert [fault.where for fault in rules.faults] == ["<rules>:7"]  # a4: 100,000 characters
    assert f"more than {MAX_TEXT}" in rules.faults[0].message


def test_own_variables_beat_those_of_includes_and_the_first_include_wins(tmp_path):
    rule = "rules:\n- match: {name: %s}\n  replace: {class: op, kwargs: {g: '${g}', h: '${h}', i: '${i}'}}\n"
    (tmp_path / "a.yaml").write_text("version: 1\nvars: {g: a, h: a}\n" + rule % "a")
    (tmp_path / "b.yaml").write_text("version: 1\nvars: {g: b, h: b, i: b}\n" + rule % "b")
    root = tmp_path / "root.yaml"
    root.write_text("version: 1\nvars: {g: root}\ninclude: [a.yaml, b.yaml]\n" + rule % "root")
    rules = parse_rules(root)
    assert not rules.faults
    assert [rule.replace.kwargs for rule in rules.rules] == [{"g": "root", "h": "a", "i": "b"}] * 3
    overridden = parse_rules(root, {"g": "me", "i": "me"})
    assert overridden.rules[2].replace.kwargs == {"g": "me", "h": "a", "i": "me"}
