"""Mistakes in a KTransformers file: all of them at once, each with its line and what helps."""

import random
from pathlib import Path

import pytest

from ktitan.rules import parse_text, to_yaml

LINEAR = "ktransformers.operators.linear.KTransformersLinear"
GOOD = "- match: {name: a}\n  replace: {class: default}\n"


def rule(match="{name: a}", replace="{class: default}", more=""):
    return f"- match: {match}\n  replace: {replace}\n{more}"


@pytest.mark.parametrize(
    ("text", "line", "message", "remedy"),
    [
        ("- 5\n", 3, "a rule must be a mapping, found number 5", "`match:`"),
        ("- match: {name: a}\n", 3, "the rule has no 'replace'", "`replace:`"),
        ("- replace: {}\n", 3, "the rule has no 'match'", "`match:`"),
        (rule("x"), 3, "match must be a mapping, found text 'x'", "name and class"),
        (rule("{nam: x}"), 3, "match has neither 'name' nor 'class'", "one or both"),
        (rule("{name: 5}"), 3, "name must be text, found number 5", "regex"),
        (rule("{name: 'a('}"), 3, "bad regex 'a(': missing )", "\\"),
        (rule("{class: Linear}"), 3, "'Linear' is no path of a class", "torch.nn.Linear"),
        (rule("{class: [torch.nn.Linear]}"), 3, "class must be text, found a list", "torch.nn.Linear"),
        (rule(replace="5"), 4, "replace must be a mapping", "class and kwargs"),
        (rule(replace="{kwargs: 5}"), 4, "kwargs must be a mapping", "name: value"),
        (rule(replace=f"{{class: {LINEAR}x}}"), 4, "'KTransformersLinearx' has no", "'KTransformersLinear'"),
        (rule(replace="{class: linear.torch}"), 4, "'linear.torch' is no operator of KTransformers", "version: 1"),
        (rule(more="  recursive: 'no'\n"), 5, "recursive must be true or false, found text 'no'", "True or False"),
        (rule(replace="{kwargs: {generate_device: gpu}}"), 4, "a device must be cpu, cuda or cuda:N", "cuda:0"),
        (rule(replace="{kwargs: {prefill_device: 0}}"), 4, "a device must be cpu, cuda or cuda:N", "cuda:0"),
        (rule(replace=f"{{class: {LINEAR}, kwargs: {{generate_op: KLinearMarlim}}}}"), 4,
         "unknown generate_op 'KLinearMarlim'", "'KLinearMarlin'"),
        (rule(replace=f"{{class: {LINEAR}, kwargs: {{prefill_op: 3}}}}"), 4, "prefill_op must be text", "KLinearTorch"),
        (rule(replace=f"{{class: {LINEAR}, kwargs: {{prefill_op: null, generate_op: null}}}}"), 4, "both null",
         "default"),
        (rule(replace="{class: ktransformers.operators.models.KQwen2MoeModel, kwargs: {transfer_map: 5}}"), 4,
         "transfer_map must be a mapping", "transfer_map: {30"),
        (rule(replace="{class: ktransformers.operators.models.KQwen2MoeModel, kwargs: {transfer_map: {x: cpu}}}"), 4,
         "'x' is no number of a layer", "transfer_map: {30"),
        (rule(replace="{class: ktransformers.operators.models.KQwen2MoeModel, kwargs: "
                      "{per_layer_prefill_intput_threshold: on}}"), 4, "must be a number of tokens", "0 turns it off"),
        (rule(replace="{kwargs: {absorb_for_prefill: 1}}"), 4, "absorb_for_prefill must be true or false", "True"),
        (rule(replace="{class: !!python/name:os.system x}"), 4, "YAML tag", "remove it"),
    ],
)  # fmt: skip
def test_each_fault_has_its_line_and_remedy(text, line, message, remedy):
    rules = parse_text(GOOD + text + GOOD, "kt.yaml")
    (fault,) = rules.faults
    assert fault.where == f"kt.yaml:{line}"
    assert message in fault.message
    assert remedy in fault.remedy


def test_all_at_once():
    text = (
        rule("{name: 'a('}", f"{{class: {LINEAR}, kwargs: {{generate_op: x, generate_device: y, prefill_device: z}}}}")
        + rule("{}", "{class: a.b}")
        + rule(more="  recursive: 1\n")
    )
    assert [fault.where.rpartition(":")[2] for fault in parse_text(text).faults] == ["1", "2", "2", "2", "3", "4", "7"]


def test_keys_that_mean_nothing_are_left_out_with_a_remark():
    rules = parse_text(
        "- match: {name: a, layers: 3}\n  replace: {class: default, device: cpu}\n  optional: True\n", "k"
    )
    assert rules.faults == ()
    said = {str(note) for note in rules.notes}
    for line, key in ((1, "layers"), (2, "device"), (3, "optional")):
        assert f"k:{line}: key {key!r} means nothing to KTransformers: it is left out" in said


def test_a_mutated_file_is_translated_or_faulty():
    """Whatever is cut out, doubled or overwritten: no exception, and what is whole can be written and read again."""
    seed = random.randrange(10**9)
    rng = random.Random(seed)
    files = sorted(Path(__file__).with_name("files").glob("*.yaml"))
    texts = [path.read_text("utf-8")[:3000] for path in files]
    whole = 0
    for _ in range(100):
        text = rng.choice(texts)
        for _ in range(rng.randrange(1, 4)):
            start = rng.randrange(len(text))
            end = start + rng.choice([0, 1, 1, 2, 20])
            filling = rng.choice(
                ["", "(", "[", "|", "$", "^", "\\", "'", ": ", "null", "5", "\n", text[start:end] * 2, "é", "${x}"]
            )
            text = text[:start] + filling + text[end:]
        rules = parse_text(text, "mutated")
        assert all(fault.message and fault.where and fault.remedy for fault in rules.faults), (seed, rules.faults)
        if not rules.faults:
            whole += 1
            assert parse_text(to_yaml(rules)) == rules, (seed, text)
    assert 2 < whole < 98, seed
