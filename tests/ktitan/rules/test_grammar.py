"""One rule at a time: what is read, and what each mistake is told."""

import copy
import pickle

import pytest

from ktitan.rules import parse_object, parse_text

DESIGN = r"""version: 1
vars: {gpu: cuda:0}
rules:
  - match:
      name: model\.layers\.(\d+)\.mlp\.experts     # a comment
      class: DeepseekV3Experts
      layers: 3-60
    replace:
      class: experts.streamed
      kwargs: {quant: as-stored, home: nvme,
               device: "${gpu}", threads: 4}
      prefill: {class: experts.cuda}
      source: experts.gguf
    optional: true
    recursive: false
  - match: {class: Linear}
    replace: {class: keep}
"""


def rule_text(match="{name: x}", replace="{class: op}", more=""):
    return f"version: 1\nrules:\n  - match: {match}\n    replace: {replace}\n{more}"


def faults_of(**parts):
    return parse_text(rule_text(**parts), "r.yaml").faults


def test_everything_of_a_rule():
    rules = parse_text(DESIGN, "d.yaml")
    assert not rules.faults
    assert rules.origin == "d.yaml"
    rule = rules.rules[0]
    assert rule.match.name.pattern == r"model\.layers\.(\d+)\.mlp\.experts"
    assert (rule.match.cls, str(rule.match.layers), rule.match.exclude) == ("DeepseekV3Experts", "3-60", ())
    assert rule.replace.operator == "experts.streamed"
    assert rule.replace.kwargs == {"quant": "as-stored", "threads": 4}
    assert rule.replace.placement == {"home": "nvme", "device": "cuda:0"}
    assert (rule.source, rule.optional, rule.recursive) == ("experts.gguf", True, False)
    assert (rule.prefill.operator, rule.prefill.kwargs, rule.prefill.placement) == ("experts.cuda", {}, {})
    assert rule.label == (
        r"name model\.layers\.(\d+)\.mlp\.experts, class DeepseekV3Experts, layers 3-60 -> experts.streamed"
    )


def test_places_of_a_rule():
    rule = parse_text(DESIGN, "d.yaml").rules[0]
    assert str(rule.location) == "d.yaml:4"
    assert str(rule.replace.location) == "d.yaml:9"
    assert str(rule.prefill.location) == "d.yaml:12"
    assert rule.replace.kwarg_lines == {"quant": 10, "home": 10, "device": 11, "threads": 11}
    assert str(rule.replace.kwarg_location("threads")) == "d.yaml:11"
    assert str(rule.replace.kwarg_location("absent")) == "d.yaml:9"


def test_defaults():
    rule = parse_text(DESIGN).rules[1]
    assert (rule.optional, rule.recursive, rule.prefill, rule.source) == (False, True, None, None)
    assert (rule.replace.operator, rule.replace.kwargs, rule.replace.placement) == ("keep", {}, {})


def test_rule_sets_can_be_copied_and_pickled():
    rules = parse_text(DESIGN)
    assert copy.deepcopy(rules) == rules
    assert pickle.loads(pickle.dumps(rules)) == rules


@pytest.mark.parametrize(
    ("prefill", "operator", "kwargs", "placement"),
    [
        ("{class: b}", "b", {}, {}),
        ("{kwargs: {device: cuda}}", "a", {}, {"device": "cuda"}),
        ("{class: b, kwargs: {chunk: 64, home: ram}}", "b", {"chunk": 64}, {"home": "ram"}),
    ],
)
def test_prefill(prefill, operator, kwargs, placement):
    rules = parse_text(rule_text(replace=f"{{class: a, kwargs: {{x: 1}}, prefill: {prefill}}}"))
    assert not rules.faults
    found = rules.rules[0].prefill
    assert (found.operator, found.kwargs, found.placement) == (operator, kwargs, placement)


def test_several_operators_in_the_order_of_preference():
    rules = parse_text(rule_text(replace="{class: [a.x, b.x], kwargs: {q: 1}, prefill: {kwargs: {q: 2}}}"))
    assert not rules.faults
    replace, prefill = rules.rules[0].replace, rules.rules[0].prefill
    assert (replace.operator, replace.others, replace.operators) == ("a.x", ("b.x",), ("a.x", "b.x"))
    assert prefill.operators == ("a.x", "b.x")
    assert rules.rules[0].label.endswith("-> a.x or b.x")


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:15"])
@pytest.mark.parametrize("home", ["vram", "ram", "nvme"])
def test_placement_values(device, home):
    kwargs = f"{{device: {device}, home: {home}, tier: {home}}}"
    rules = parse_text(rule_text(replace=f"{{class: keep, kwargs: {kwargs}}}"))
    assert not rules.faults
    assert rules.rules[0].replace.placement == {"device": device, "home": home, "tier": home}


def test_a_kwarg_of_any_plain_shape_is_kept():
    rules = parse_text(rule_text(replace="{class: a, kwargs: {b: [1, {c: ~}], d: 1e-6, e: '5'}}"))
    assert rules.rules[0].replace.kwargs == {"b": [1, {"c": None}], "d": 1e-6, "e": "5"}


@pytest.mark.parametrize(
    ("match", "message", "remedy"),
    [
        ("{nmae: x, class: A}", "unknown key 'nmae' in match", "did you mean 'name'?"),
        ("{name: x, exclude: y}", "unknown key 'exclude' in match", "known: class, layers, name, not"),
        ("{name: x, recursive: true}", "unknown key 'recursive' in match", "'recursive' belongs in the rule"),
        ("{name: x, kwargs: {}}", "unknown key 'kwargs' in match", "'kwargs' belongs in replace"),
        ("{}", "match has no condition", "name: .*"),
        ("{not: {name: x}}", "match has no condition", "name: .*"),
        ("x", "match must be a mapping, found text 'x'", "name, class, layers, not"),
        ("[{name: x}]", "match must be a mapping, found a list", "name, class, layers, not"),
        ("", "match must be a mapping, found nothing", "name, class, layers, not"),
        ("{name: 5}", "name of match must be text, found number 5", "regex"),
        ("{name: [a, b]}", "name of match must be text, found a list", "joined with |"),
        ("{name: ''}", "name of match must be text, found text ''", "regex"),
        ("{name: 'a.(b'}", "bad regex 'a.(b': missing ), unterminated subpattern at position 2: '(b'", "put \\"),
        ("{name: '*.mlp'}", "nothing to repeat at position 0: '*.mlp'", "not a glob: any text is .*"),
        ("{name: 'a[z-a]'}", "bad character range z-a at position 2", "put \\"),
        ("{name: 'a{99999999999999999999}'}", "the repetition number is too large", "simpler"),
        ("{class: 'Linear*'}", "'Linear*' is no class name", "patterns belong in `name:`"),
        ("{class: 'a..B'}", "'a..B' is no class name", "module.Linear"),
        ("{class: [A, B]}", "class of match must be text, found a list", "class name"),
        ("{layers: 9-3}", "layers 9-3 run backwards", "write 3-9"),
        ("{layers: {from: 3}}", "layers must be numbers and ranges, found a mapping", "3-60"),
        ("{name: x, not: {}}", "not has no condition", "remove it"),
        ("{name: x, not: []}", "not is an empty list", "remove it"),
        ("{name: x, not: y}", "not must be a mapping, found text 'y'", "name, class, layers"),
        ("{name: x, not: [{nam: y, class: A}]}", "unknown key 'nam' in not", "'name'"),
        ("{name: x, not: {not: {name: y}, class: A}}", "unknown key 'not' in not", "belongs in match"),
        ("{name: x, not: {name: '('}}", "bad regex '('", "put \\"),
    ],
)
def test_faults_of_match(match, message, remedy):
    check_single_fault(faults_of(match=match), 3, message, remedy)


@pytest.mark.parametrize(
    ("replace", "message", "remedy"),
    [
        ("{kwargs: {a: 1}}", "replace has no 'class'", "class: keep"),
        ("keep", "replace must be a mapping, found text 'keep'", "class, kwargs, prefill, source"),
        ("{class: 5}", "class of replace must be text, found number 5", "registered operator"),
        ("{class: }", "class of replace must be text, found nothing", "registered operator"),
        ("{class: []}", "class is an empty list", "registered operator"),
        ("{class: [a, 5]}", "class has an entry that is not text", "registered operator"),
        ("{class: [a, '']}", "class has an entry that is not text", "registered operator"),
        ("{class: [keep, a]}", "keep fits every module, so it can only be the last of several", "to the end"),
        ("{class: [a, b, a]}", "class names a twice", "each operator once"),
        ("{class: a, device: cpu}", "unknown key 'device' in replace", "'device' belongs under `kwargs:`"),
        ("{class: a, kwarg: {}}", "unknown key 'kwarg' in replace", "'kwargs'"),
        ("{class: a, optional: true}", "unknown key 'optional' in replace", "belongs in the rule"),
        ("{class: a, name: x}", "unknown key 'name' in replace", "belongs in match"),
        ("{class: a, kwargs: }", "kwargs must be a mapping, found nothing", "remove it"),
        ("{class: a, kwargs: [b]}", "kwargs must be a mapping, found a list", "{name: value}"),
        ("{class: a, kwargs: {home: disk}}", "unknown home: text 'disk'", "known: nvme, ram, vram"),
        ("{class: a, kwargs: {home: nvm}}", "unknown home: text 'nvm'", "did you mean 'nvme'?"),
        ("{class: a, kwargs: {tier: 5}}", "unknown tier: number 5", "known: nvme, ram, vram"),
        ("{class: a, kwargs: {home: [ram]}}", "unknown home: a list", "known: nvme, ram, vram"),
        ("{class: a, kwargs: {device: meta}}", "found text 'meta'", "real device"),
        ("{class: a, kwargs: {device: gpu}}", "found text 'gpu'", "cpu, cuda or cuda:N"),
        ("{class: a, kwargs: {device: 'cuda:x'}}", "found text 'cuda:x'", "cpu, cuda or cuda:N"),
        ("{class: a, kwargs: {device: 'cuda:-1'}}", "found text 'cuda:-1'", "cpu, cuda or cuda:N"),
        ("{class: a, kwargs: {device: 'cpu:0'}}", "found text 'cpu:0'", "cpu, cuda or cuda:N"),
        ("{class: a, kwargs: {device: 'cuda:01'}}", "found text 'cuda:01'", "cpu, cuda or cuda:N"),
        ("{class: a, kwargs: {device: 'cuda:100'}}", "found text 'cuda:100'", "cpu, cuda or cuda:N"),
        ("{class: a, kwargs: {device: CUDA:1}}", "found text 'CUDA:1'", "write cuda:1"),
        ("{class: a, kwargs: {device: 1}}", "found number 1", "write cuda:1"),
        ("{class: a, kwargs: {device: }}", "found nothing", "cpu, cuda or cuda:N"),
        ("{class: keep, kwargs: {quant: q4_k}}", "keep takes no 'quant'", "device, home, tier"),
        ("{class: a, source: 5}", "source of replace must be text, found number 5", "experts.gguf"),
        ("{class: a, prefill: {}}", "prefill changes nothing", "remove it"),
        ("{class: a, prefill: b}", "prefill must be a mapping, found text 'b'", "class, kwargs"),
        ("{class: a, prefill: }", "prefill must be a mapping, found nothing", "class, kwargs"),
        ("{class: a, prefill: {class: b, source: c}}", "unknown key 'source' in prefill", "belongs in replace"),
        ("{class: a, prefill: {class: b, device: cpu}}", "unknown key 'device' in prefill", "`kwargs:`"),
        ("{class: a, prefill: {kwargs: {device: meta}}}", "found text 'meta'", "real device"),
    ],
)
def test_faults_of_replace(replace, message, remedy):
    check_single_fault(faults_of(replace=replace), 4, message, remedy)


@pytest.mark.parametrize(
    ("more", "message", "remedy"),
    [
        ("    recursiv: true", "unknown key 'recursiv' in the rule", "'recursive'"),
        ("    device: cpu", "unknown key 'device' in the rule", "`kwargs:`"),
        ("    source: a.gguf", "unknown key 'source' in the rule", "belongs in replace"),
        ("    class: keep", "unknown key 'class' in the rule", "'class' belongs in match or replace"),
        ("    layers: 1-2", "unknown key 'layers' in the rule", "belongs in match"),
        ("    optional: 'true'", "optional of the rule must be true or false, found text 'true'", "without quotes"),
        ("    optional: yes", "found text 'yes'", "write true or false"),
        ("    recursive: 0", "found number 0", "write true or false"),
        ("    recursive:", "found nothing", "write true or false"),
        ("    match: {name: y}", "key 'match' is given twice (first in line 3)", "keep one"),
        ("  - 5", "the rule must be a mapping, found number 5", "match, replace, optional, recursive"),
        ("  - {match: {name: x}}", "the rule has no 'replace'", "`replace:`"),
        ("  - {replace: {class: a}}", "the rule has no 'match'", "`match:`"),
    ],
)
def test_faults_of_the_rule(more, message, remedy):
    check_single_fault(faults_of(more=more), 5, message, remedy)


def check_single_fault(faults, line, message, remedy):
    assert [fault.where for fault in faults] == [f"r.yaml:{line}"], faults
    assert message in faults[0].message
    assert remedy in faults[0].remedy


def test_a_faulty_part_used_twice_is_listed_once_and_spoils_both_rules():
    text = """version: 1
rules:
  - match: &m {name: "("}
    replace: {class: a}
  - match: *m
    replace: {class: b}
  - match: {name: c}
    replace: {class: c}
"""
    rules = parse_text(text)
    assert len(rules.faults) == 1
    assert [rule.replace.operator for rule in rules.rules] == ["c"]


@pytest.mark.parametrize("value", ["!!python/name:os.system ''", "'${nope}'"])
def test_a_broken_value_spoils_its_rule_with_one_fault(value):
    for replace in (
        f"{{class: {value}}}",
        f"{{class: a, kwargs: {value}}}",
        f"{{class: a, kwargs: {{device: {value}}}}}",
        f"{{class: a, kwargs: {{b: [{value}]}}}}",
        f"{{class: a, prefill: {value}}}",
        f"{{class: a, source: {value}}}",
        value,
    ):
        rules = parse_text(rule_text(replace=replace))
        assert (len(rules.faults), rules.rules) == (1, ())
    for match in (f"{{name: {value}}}", f"{{layers: {value}}}", f"{{layers: [1, {value}]}}", value):
        rules = parse_text(rule_text(match=match))
        assert (len(rules.faults), rules.rules) == (1, ())
    for more in (f"    optional: {value}\n", f"  - {value}\n"):
        rules = parse_text(rule_text(more=more))
        assert len(rules.faults) == 1


def test_objects_follow_the_same_grammar():
    rules = parse_object(
        [
            {
                "match": {"name": r".*\.mlp", "layers": [0, "2-"]},
                "replace": {"class": "keep", "kwargs": {"home": "ram"}},
            },
            {"match": {"nmae": "x", "class": "A"}, "replace": {"class": "a", "kwargs": {"device": "meta", "q": 1}}},
        ]
    )
    assert [rule.replace.placement for rule in rules.rules] == [{"home": "ram"}]
    assert [(fault.where, fault.message.split(",")[0]) for fault in rules.faults] == [
        ("rules[1].match.nmae", "unknown key 'nmae' in match"),
        ("rules[1].replace.kwargs.device", "device must be cpu"),
    ]


def test_places_of_an_object_rule():
    rule = parse_object(
        {"version": 1, "rules": [{"match": {"name": "x"}, "replace": {"class": "a", "kwargs": {"b": 1}}}]}
    )
    replace = rule.rules[0].replace
    assert str(rule.rules[0].location) == "rules[0]"
    assert str(replace.location) == str(replace.kwarg_location("b")) == "rules[0].replace"
