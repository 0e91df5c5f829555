"""One file with a mistake of nearly every kind: all are found in one run, each with its line and its remedy."""

from ktitan.rules import parse_text

TEXT = r"""version: 1
vars:
  gpu: cuda:0
  list: [1, 2]
include: [no_such_part.yaml]
ruels: []
rules:
  - match:
      nmae: model\.embed_tokens
      class: Embedding
    replace:
      class: keep
  - match: {name: fine\.one}
    replace: {class: linear.torch}
  - match:
      name: model\.layers\.(\d+
      layers: 60-3
    replace:
      class: experts.streamed
      device: cuda:0
      kwargs:
        home: nvmee
        device: meta
        quant: as-stored
        quant: q4_k
      prefil: {class: experts.cuda}
  - replace:
      kwargs: {device: "${gpuu}"}
    optional: yes
  - match:
      not: {klass: Linear}
    replace: !!python/object/apply:os.system ["exit 1"]
  - lm_head
  - match: {class: "*Linear", name: [a]}
    replace: {class: keep, kwargs: {bits: 4}, source: 7}
    recursive: "no"
  - match: {name: fine\.two, not: [{layers: 1:3}]}
    replace: {class: op, prefill: {}}
  - match: {name: fine\.three$}
    replace: {class: keep, kwargs: {home: ram}}
"""

EXPECTED = [
    (4, "variable 'list' must be text or a number", "one plain value"),
    (5, "there is no rule file 'no_such_part.yaml'", ""),
    (6, "unknown key 'ruels' in the rule file", "'rules'"),
    (9, "unknown key 'nmae' in match", "'name'"),
    (16, r"bad regex 'model\\.layers\\.(\\d+'", "put \\"),
    (17, "layers 60-3 run backwards", "3-60"),
    (20, "unknown key 'device' in replace", "`kwargs:`"),
    (22, "unknown home: text 'nvmee'", "'nvme'"),
    (23, "device must be cpu, cuda or cuda:N, found text 'meta'", "real device"),
    (25, "key 'quant' is given twice (first in line 24)", "keep one"),
    (26, "unknown key 'prefil' in replace", "'prefill'"),
    (27, "the rule has no 'match'", "`match:`"),
    (28, "replace has no 'class'", "class: keep"),
    (28, "variable 'gpuu' is not defined", "'gpu'"),
    (29, "optional of the rule must be true or false", "without quotes"),
    (31, "match has no condition", "name: .*"),
    (31, "not has no condition", "remove it"),
    (31, "unknown key 'klass' in not", "'class'"),
    (32, "YAML tag '!!python/object/apply:os.system' is refused", "plain values"),
    (33, "the rule must be a mapping, found text 'lm_head'", "match, replace"),
    (34, "'*Linear' is no class name", "patterns"),
    (34, "name of match must be text, found a list", "|"),
    (35, "keep takes no 'bits'", "device, home, tier"),
    (35, "source of replace must be text, found number 7", "experts.gguf"),
    (36, "recursive of the rule must be true or false, found text 'no'", "without quotes"),
    (37, "'1:3' is no layer", "3-60"),
    (38, "prefill changes nothing", "remove it"),
]


def test_every_mistake_is_found_with_its_line_and_remedy():
    rules = parse_text(TEXT, "many.yaml")
    found = sorted((int(fault.where.removeprefix("many.yaml:")), fault.message, fault.remedy) for fault in rules.faults)
    for (line, message, remedy), expected in zip(found, EXPECTED, strict=False):
        assert (line, message[: len(expected[1])]) == expected[:2]
        assert expected[2] in remedy
        assert remedy
    assert len(found) == len(EXPECTED)


def test_the_good_rules_are_still_parsed():
    rules = parse_text(TEXT, "many.yaml")
    assert [rule.match.name.pattern for rule in rules.rules] == [r"fine\.one", r"fine\.three$"]


def test_faults_are_listed_by_line():
    lines = [int(fault.where.rsplit(":", 1)[1]) for fault in parse_text(TEXT, "many.yaml").faults]
    assert lines == sorted(lines)
