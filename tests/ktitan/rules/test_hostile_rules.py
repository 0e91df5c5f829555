"""Rule files that try to run code, read elsewhere, or fall over the reader."""

import random
import string
import subprocess
import sys

import pytest

from ktitan.rules import parse_object, parse_rules, parse_text

SEED_TEXT = r"""version: 1
vars: {gpu: cuda:0, n: 8}
include: [a.yaml]
rules:
  - match: {name: 'model\.layers\.(\d+)$', class: Linear, layers: 3-60, not: [{class: Gate}]}
    replace:
      class: &op experts.streamed
      kwargs: {home: nvme, device: "${gpu}", threads: "${n}"}
      prefill: {class: *op}
    optional: false
"""


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['touch {hit}']",
        "!!python/object/apply:subprocess.check_output [[touch, '{hit}']]",
        "!!python/object/new:os.system ['touch {hit}']",
        "!!python/name:os.system",
        "!!python/module:antigravity",
        "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch {hit}']",
    ],
)
def test_python_tags_are_refused_and_do_nothing(tmp_path, value):
    hit = tmp_path / "hit"
    value = value.format(hit=hit)
    path = tmp_path / "r.yaml"
    for text in (
        f"version: 1\nrules: {value}\n",
        f"version: 1\nvars:\n  a: {value}\nrules: []\n",
        f"version: 1\nrules:\n- match: {{name: x}}\n  replace:\n    class: a\n    kwargs:\n      b: {value}\n",
        f"version: 1\nrules:\n  - {value}\n",
        value,
    ):
        path.write_text(text)
        rules = parse_rules(path)
        assert any("is refused" in fault.message for fault in rules.faults)
        assert not rules.rules
    assert not hit.exists()
    assert "antigravity" not in sys.modules


def test_class_paths_import_nothing(tmp_path):
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'hit')!r}, 'w')\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
before = set(sys.modules)
from ktitan.rules import parse_text
known = set(sys.modules)
rules = parse_text('''version: 1
rules:
  - match: {{class: evil_module.Thing}}
    replace: {{class: evil_module.run, kwargs: {{a: 1}}, prefill: {{class: os.system}}}}
  - match: {{class: os.system}}
    replace: {{class: ctypes.CDLL}}
''')
assert not rules.faults, rules.faults
assert [rule.replace.operator for rule in rules.rules] == ["evil_module.run", "ctypes.CDLL"]
assert not rules.rules[0].match.hits("x", [("Linear", "torch.nn.Linear")])
new = set(sys.modules) - known
assert not {{name for name in new if name.split(".")[0] in ("evil_module", "ctypes", "torch")}}, new
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert not (tmp_path / "hit").exists()


def test_importing_the_package_imports_no_torch():
    code = "import ktitan.rules, sys; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_other_peoples_files_are_not_shown(tmp_path):
    secret = tmp_path / "secret.yaml"
    secret.write_text("password: hunter2\n")
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "r.yaml"
    path.write_text(f"version: 1\ninclude: [../secret.yaml, '{secret}', /etc/passwd, /proc/self/environ]\nrules: []\n")
    faults = parse_rules(path).faults
    assert len(faults) == 4
    assert not any("hunter2" in str(fault) or "password" in str(fault) for fault in faults)


def mutated(text, rng):
    letters = list(text)
    alphabet = string.printable + "é\u2028\x85\ud800\x00\ufeff" + "${}[]&*!|>%@`-:?,#'\"\\" * 3
    for _ in range(rng.randint(1, 10)):
        place = rng.randrange(len(letters))
        action = rng.random()
        if action < 0.4:
            letters[place] = rng.choice(alphabet)
        elif action < 0.7:
            letters.insert(place, rng.choice(alphabet))
        elif action < 0.85:
            del letters[place : place + rng.randint(1, 8)]
        else:
            start = rng.randrange(len(letters))
            letters[place:place] = letters[start : start + rng.randint(1, 60)]
    return "".join(letters)


def test_mutated_files_give_faults_and_never_raise():
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    for number in range(400):
        text = mutated(SEED_TEXT, rng)
        rules = parse_text(text)
        for fault in rules.faults:
            assert fault.where and fault.message and fault.remedy, (seed, number, fault)
            str(fault).encode("utf-8")


def test_random_objects_give_faults_and_never_raise():
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    keys = [
        "version",
        "vars",
        "include",
        "rules",
        "match",
        "replace",
        "name",
        "class",
        "layers",
        "not",
        "kwargs",
        "prefill",
    ]
    leaves = [None, True, 1, 0, -1, 2.5, "", "x", "(", "${a}", "1-", "keep", "meta", b"x", object(), float("nan")]

    def value(depth):
        kind = rng.random()
        if depth == 0 or kind < 0.3:
            return rng.choice(leaves)
        if kind < 0.5:
            return [value(depth - 1) for _ in range(rng.randint(0, 3))]
        return {rng.choice([*keys, 5]): value(depth - 1) for _ in range(rng.randint(0, 4))}

    for _ in range(400):
        rules = parse_object(value(5))
        assert all(fault.where and fault.message and fault.remedy for fault in rules.faults), seed
