"""Whole rule files: the top level, includes and their order, files that cannot be read."""

import io
import os
from pathlib import Path

import pytest

from ktitan.errors import RuleError
from ktitan.rules import includes as includes_module
from ktitan.rules import packaged_folder, parse_object, parse_rules, parse_text
from ktitan.rules.includes import MAX_FILE_BYTES

RULE = "  - match: {{name: {0}}}\n    replace: {{class: {0}}}\n"


def write(folder: Path, name: str, rules: str = "", include: str = "", text: str = "") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"version: 1\ninclude: {include}\n" if include else "version: 1\n"
    body = "rules:\n" + "".join(RULE.format(rule) for rule in rules.split()) if rules else ""
    path.write_text(text or head + body)
    return path


def operators(rules):
    return [rule.replace.operator for rule in rules.rules]


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A folder that stands for the rule files that come with ktitan."""
    folder = tmp_path / "packaged"
    folder.mkdir()
    monkeypatch.setattr(includes_module, "packaged_folder", lambda: folder)
    return folder


def test_own_rules_come_first_then_includes_depth_first(tmp_path):
    write(tmp_path, "parts/a.yaml", "a1 a2", "[deeper/c.yaml]")
    write(tmp_path, "parts/deeper/c.yaml", "c")
    write(tmp_path, "parts/b.yaml", "b")
    root = write(tmp_path, "root.yaml", "r", "[parts/a.yaml, parts/b.yaml]")
    rules = parse_rules(root)
    assert not rules.faults
    assert operators(rules) == ["r", "a1", "a2", "c", "b"]
    assert rules.origin == str(root)
    assert str(rules.rules[3].location) == f"{tmp_path}/parts/deeper/c.yaml:3"


def test_relative_paths_stay_relative_in_places(tmp_path, monkeypatch):
    write(tmp_path, "rules/parts/a.yaml", "a")
    write(tmp_path, "rules/root.yaml", "r", "[parts/../parts/a.yaml]")
    monkeypatch.chdir(tmp_path)
    rules = parse_rules("rules/root.yaml")
    assert [str(rule.location) for rule in rules.rules] == ["rules/root.yaml:4", "rules/parts/a.yaml:3"]
    monkeypatch.chdir(tmp_path / "rules")
    assert [str(rule.location) for rule in parse_rules("root.yaml").rules] == ["root.yaml:4", "parts/a.yaml:3"]


def test_packaged_files_have_their_full_path_in_places(tmp_path, packaged, monkeypatch):
    write(packaged, "family.yaml", "p")
    write(tmp_path, "mine/root.yaml", include="[family.yaml]")
    monkeypatch.chdir(tmp_path / "mine")
    assert [str(rule.location) for rule in parse_rules("root.yaml").rules] == [f"{packaged}/family.yaml:3"]


def test_a_file_reached_twice_counts_once(tmp_path):
    write(tmp_path, "shared.yaml", "s")
    write(tmp_path, "a.yaml", "a", "[shared.yaml]")
    write(tmp_path, "b.yaml", "b", "[shared.yaml, ./shared.yaml]")
    assert operators(parse_rules(write(tmp_path, "root.yaml", "r", "[a.yaml, b.yaml]"))) == ["r", "a", "s", "b"]


def test_variables_in_include_paths(tmp_path):
    write(tmp_path, "parts/llama.yaml", "l")
    root = write(tmp_path, "root.yaml", text="version: 1\nvars: {f: llama}\ninclude: ['parts/${f}.yaml']\n")
    assert operators(parse_rules(root)) == ["l"]


def test_a_packaged_file_is_found_when_there_is_none_beside(tmp_path, packaged):
    write(packaged, "family.yaml", "p", "[parts/x.yaml]")
    write(packaged, "parts/x.yaml", "px", "[../common.yaml]")
    write(packaged, "common.yaml", "pc")
    own = write(tmp_path, "mine/root.yaml", "r", "[family.yaml]")
    assert operators(parse_rules(own)) == ["r", "p", "px", "pc"]
    assert operators(parse_text("version: 1\ninclude: [parts/x.yaml]")) == ["px", "pc"]
    assert operators(parse_object({"version": 1, "include": ["family.yaml"]})) == ["p", "px", "pc"]
    write(tmp_path, "mine/family.yaml", "beside")
    assert operators(parse_rules(own)) == ["r", "beside"]
    absolute = write(tmp_path, "mine/abs.yaml", "r", f"['{packaged}/common.yaml']")
    assert operators(parse_rules(absolute)) == ["r", "pc"]


@pytest.mark.parametrize("name", ["../other.yaml", "parts/../../other.yaml", "{tmp}/other.yaml", "{tmp}/mine/own.yaml"])
def test_includes_that_leave_the_folder_are_refused(tmp_path, packaged, name):
    write(tmp_path, "other.yaml", "o")
    write(tmp_path, "mine/own.yaml", "o")
    root = write(tmp_path, "mine/root.yaml", "r", f"['{name.format(tmp=tmp_path)}']")
    rules = parse_rules(root)
    assert operators(rules) == ["r"]
    assert [fault.where for fault in rules.faults] == [f"{root}:2"]
    assert "leaves the folder" in rules.faults[0].message


def test_a_packaged_file_cannot_reach_out_either(tmp_path, packaged):
    write(tmp_path, "secret.yaml", "s")
    write(packaged, "family.yaml", "p", "[../secret.yaml]")
    rules = parse_text("version: 1\ninclude: [family.yaml]")
    assert len(rules.faults) == 1
    assert rules.faults[0].where == f"{packaged}/family.yaml:2"


def test_an_included_file_may_go_up_inside_the_tree(tmp_path):
    write(tmp_path, "common.yaml", "c")
    write(tmp_path, "parts/a.yaml", "a", "[../common.yaml]")
    assert operators(parse_rules(write(tmp_path, "root.yaml", "r", "[parts/a.yaml]"))) == ["r", "a", "c"]


def test_cycles_are_faults_once(tmp_path):
    write(tmp_path, "a.yaml", "a", "[b.yaml]")
    write(tmp_path, "b.yaml", "b", "[a.yaml, b.yaml]")
    rules = parse_rules(tmp_path / "a.yaml")
    assert operators(rules) == ["a", "b"]
    assert [(fault.where, fault.message) for fault in rules.faults] == [
        (f"{tmp_path}/b.yaml:2", "files include each other: a.yaml -> b.yaml -> a.yaml"),
        (f"{tmp_path}/b.yaml:2", "files include each other: b.yaml -> b.yaml"),
    ]


def test_a_cycle_through_a_symlink_is_seen(tmp_path):
    write(tmp_path, "a.yaml", "a", "[link.yaml]")
    os.symlink(tmp_path / "a.yaml", tmp_path / "link.yaml")
    rules = parse_rules(tmp_path / "a.yaml")
    assert operators(rules) == ["a"]
    assert [fault.where for fault in rules.faults] == [f"{tmp_path}/a.yaml:2"]
    assert "include each other" in rules.faults[0].message


def test_missing_include_names_the_nearest_file(tmp_path, packaged):
    write(packaged, "parts/attention.yaml", "p")
    root = write(tmp_path, "mine/root.yaml", "r", "[parts/atention.yaml]")
    (fault,) = parse_rules(root).faults
    assert fault.where == f"{root}:2"
    assert fault.message == "there is no rule file 'parts/atention.yaml' to include"
    assert fault.remedy == "did you mean 'parts/attention.yaml'?"


@pytest.mark.parametrize(
    ("include", "message"),
    [
        ("a.yaml", "include must be a list of files, found text 'a.yaml'"),
        ("{a: 1}", "include must be a list of files, found a mapping"),
        ("[5]", "an include must be a path, found number 5"),
        ("['']", "an include must be a path, found text ''"),
        ("['${no}']", "variable 'no' is not defined"),
        ('["a\\0b"]', "there is no rule file"),
        ("['.']", "leaves the folder"),
        ("[parts]", "there is no rule file 'parts' to include"),
        (f"['{'x' * 5000}']", "there is no rule file"),
    ],
)
def test_bad_includes(tmp_path, include, message):
    (tmp_path / "parts").mkdir()
    (fault,) = parse_rules(write(tmp_path, "root.yaml", "r", include)).faults
    assert message in fault.message
    assert fault.where == f"{tmp_path}/root.yaml:2"


def test_faults_of_included_files_come_after_the_includers(tmp_path):
    write(tmp_path, "z.yaml", text="version: 2\nrules: 5\n")
    write(tmp_path, "b.yaml", text="version: 1\nrules: [\n")
    root = write(tmp_path, "root.yaml", text="version: 1\ninclude: [z.yaml, b.yaml]\nrules:\n- {match: {name: x}}\n")
    assert [fault.where for fault in parse_rules(root).faults] == [
        f"{root}:4",
        f"{tmp_path}/z.yaml:1",
        f"{tmp_path}/z.yaml:2",
        f"{tmp_path}/b.yaml:3",
    ]


@pytest.mark.parametrize(
    ("text", "line", "message", "remedy"),
    [
        ("rules: []", 1, "the rule file has no 'version'", "version: 1"),
        ("rules: []\nversion: 2", 2, "rule files of version 2 are not known", "update ktitan"),
        ("version: '1'\nrules: []", 1, "version must be a number, found text '1'", "version: 1"),
        ("version: true\nrules: []", 1, "version must be a number, found true", "version: 1"),
        ("version: 1.0\nrules: []", 1, "version must be a number, found number 1.0", "version: 1"),
        ("version: 1\nrule: []\nrules: []", 2, "unknown key 'rule' in the rule file", "'rules'"),
        ("version: 1\nmatch: {}\nrules: []", 2, "unknown key 'match' in the rule file", "belongs in the rule"),
        ("version: 1\nrules: {a: b}", 2, "rules must be a list, found a mapping", "- match:"),
        ("version: 1\nrules:", 2, "rules must be a list, found nothing", "- match:"),
        ("version: 1", 1, "there are no rules", "`rules:`"),
        ("version: 1\nvars: {a: 1}", 1, "there are no rules", "`rules:`"),
        ("~", 1, "the rule file is empty", "version: 1"),
        ("hello", 1, "the rule file must be a mapping, found text 'hello'", "version, vars, include, rules"),
        ("{}", 1, "the rule file has no 'version'", "version: 1"),
        ("- match: {name: x}\n  replace: {class: linear.torch}", 2, "no operator of KTransformers", "`version: 1`"),
        ("[]", 1, "the list of rules is empty", "- match:"),
    ],
)
def test_faults_of_the_top_level(text, line, message, remedy):
    (fault,) = parse_text(text, "t.yaml").faults
    assert fault.where == f"t.yaml:{line}"
    assert message in fault.message
    assert remedy in fault.remedy


def test_an_empty_list_of_rules_is_a_choice():
    assert parse_text("version: 1\nrules: []") == parse_text("version: 1\nrules: []\n# nothing")
    assert not parse_text("version: 1\nrules: []").faults
    assert not parse_object([]).faults


@pytest.mark.parametrize(
    "replace",
    [
        {"class": "ktransformers.operators.linear.KTransformersLinear"},
        {"class": "default", "kwargs": {"generate_device": "cuda"}},
    ],
)
def test_a_ktransformers_list_as_an_object(replace):
    given = [{"match": {"name": "a"}, "replace": replace}, {"match": {}, "replace": replace}]
    (fault,) = parse_object(given).faults
    assert (fault.message, fault.where) == ("match has neither 'name' nor 'class'", "rules[1].match")
    rules = parse_object(given[:1], "mine")
    assert rules.faults == () and rules.rules[0].match.name.pattern == ".*a.*"
    assert str(rules.notes[0]).startswith("mine rules: ")


def test_a_ktransformers_file_may_be_included(tmp_path):
    (tmp_path / "kt.yaml").write_text("- match: {name: lm_head}\n  replace: {class: default}\n")
    own = write(tmp_path, "own.yaml", text="version: 1\ninclude: [kt.yaml]\nrules:\n" + RULE.format("a"))
    rules = parse_rules(own)
    assert [rule.replace.operator for rule in rules.rules] == ["a", "keep"]
    assert rules.notes and not rules.faults


def test_objects_that_are_no_rules():
    for wrong in (None, 5, "rules.yaml", {"version": 1, "rules": None}, {1: 2}, object()):
        assert parse_object(wrong).faults
    assert parse_object({"rules": [{}]}, origin="mine").faults[0].where == "mine"
    assert parse_object([{"match": 1, "replace": 1}], origin="mine").faults[0].where == "mine rules[0].match"


def test_missing_file(tmp_path):
    write(tmp_path, "deepseek.yaml", "r")
    (fault,) = parse_rules(tmp_path / "deepseak.yaml").faults
    assert fault.where == str(tmp_path / "deepseak.yaml")
    assert "there is no rule file" in fault.message
    assert fault.remedy == "did you mean 'deepseek.yaml'?"
    (fault,) = parse_rules(tmp_path / "no" / "folder.yaml").faults
    assert fault.remedy == "check the path"


def test_unreadable_files(tmp_path):
    (fault,) = parse_rules(tmp_path).faults
    assert "cannot be read: Is a directory" in fault.message
    (fault,) = parse_rules(tmp_path / "a\0b.yaml").faults
    assert "cannot be read" in fault.message
    os.symlink(tmp_path / "loop.yaml", tmp_path / "loop.yaml")
    (fault,) = parse_rules(tmp_path / "loop.yaml").faults
    assert "cannot be read" in fault.message


def test_no_permission(tmp_path, monkeypatch):
    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", path)

    path = write(tmp_path, "root.yaml", "r")
    monkeypatch.setattr(includes_module, "open", refuse, raising=False)  # the tests may run as root
    (fault,) = parse_rules(path).faults
    assert "cannot be read: Permission denied" in fault.message


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("version: 1\n# schlüssel\n".encode("latin-1"))
    (fault,) = parse_rules(path).faults
    assert fault.where == f"{path}:2"
    assert "byte 0xfc is not UTF-8" in fault.message


def test_a_byte_order_mark_is_fine(tmp_path):
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfversion: 1\nrules: []\n")
    assert not parse_rules(path).faults


def test_a_file_too_large_for_rules(tmp_path):
    path = tmp_path / "model.gguf"
    with open(path, "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (fault,) = parse_rules(path).faults
    assert "larger than 4 MiB" in fault.message


def test_a_file_without_end_is_not_read_on(monkeypatch):
    class Endless(io.RawIOBase):
        def read(self, size):
            return b" " * size

    monkeypatch.setattr(includes_module, "open", lambda path, mode: Endless(), raising=False)
    (fault,) = parse_rules("endless.yaml").faults
    assert "larger than 4 MiB" in fault.message


def test_faults_make_one_rule_error(tmp_path):
    rules = parse_text("version: 3\nrules: 5\n", "two.yaml")
    error = RuleError.from_faults(rules.faults, "the rules cannot be used")
    assert str(error).splitlines()[0] == "[RuleError] the rules cannot be used"
    assert "1. two.yaml:1: rule files of version 3" in str(error)


def test_the_packaged_folder_is_there():
    assert (packaged_folder() / "__init__.py").is_file()
