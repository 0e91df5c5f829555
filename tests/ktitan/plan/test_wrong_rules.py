"""One rule file with every mistake of the grammar: one report, each with file:line and remedy, before any read."""

import re
import textwrap

import pytest

import ktitan
from ktitan.weights import source as weight_source

from support.tiny_models import on_meta, save_tiny

WRONG = textwrap.dedent(
    r"""
    version: 1
    vars: {gpu: "cuda:7"}
    colour: blue
    rules:
      - match: {name: 'model\.layers\.\d+\.self_attn'}
        replace: {class: attention.trch}
      - match: {name: 'lm_head'}
        replace: {class: linear.torch, kwargs: {dtpe: float32}}
      - match: {name: 'model\.layers\.(\d+\.mlp'}
        replace: {class: experts.torch}
      - match: {name: 'model\.layers\.0\.mlp\.expert'}
        replace: {class: expert.torch}
      - match: {class: MixtralExperts}
        replace: {class: experts.torch}
      - match: {name: '.*experts', layers: 0-2}
        replace: {class: experts.torch}
      - match: {class: MixtralRMSNorm}
        replace: {class: experts.torch}
      - match: {class: MixtralTopKRouter}
        replac: {class: keep}
      - match: {name: 'model\.embed_tokens'}
        replace: {class: embedding.torch, kwargs: {home: nvme}}
      - match: {name: 'model\.layers\.1\.self_attn\.q_proj'}
        replace: {class: linear.torch, kwargs: {device: "${gpu}"}, source: other.gguf}
      - match: {name: 'model\.layers\.2\.self_attn\.q_proj'}
        replace: {class: linear.torch, kwargs: {dtype: int3}}
    """
).lstrip()

# Line of the mistake -> what the report must say there, and what the remedy must name.
EXPECTED = {
    3: ("colour", ""),
    6: ("attention.trch", "attention.torch"),
    8: ("dtpe", "dtype"),
    9: ("regex", ""),
    11: ("matches no module", "optional"),
    12: ("expert.torch", "experts.torch"),
    15: ("shadowed", ""),
    18: ("MixtralRMSNorm", ""),
    20: ("replac", "replace"),
    22: ("nvme", ""),
    23: ("other.gguf", "given"),
    26: ("int3", ""),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixtral")
    save_tiny("mixtral", path)
    return path


@pytest.fixture
def report(folder, tmp_path, monkeypatch):
    """The error that the wrong file gives; reading a weight byte on the way is a failure."""

    def forbidden(*args, **kwargs):
        raise AssertionError("a weight was read before the rules were found wrong")

    monkeypatch.setattr(weight_source.FileSource, "read_into", forbidden)
    rules = tmp_path / "wrong.yaml"
    rules.write_text(WRONG)
    with pytest.raises(ktitan.RuleError) as caught:
        ktitan.optimize_and_load(on_meta(folder), rules, weights=folder, device="cpu", budget="ram=1KiB")
    return caught.value


@pytest.mark.parametrize("line", list(EXPECTED))
def test_each_mistake_is_reported_at_its_line(report, line):
    found, remedy = EXPECTED[line]
    here = [fault for fault in report.faults if re.search(rf"wrong\.yaml:{line}$", fault.where)]
    matching = [fault for fault in here if found in fault.message]
    assert matching, f"nothing about {found!r} at line {line}: {report}"
    assert any(remedy in fault.remedy and fault.remedy for fault in matching)


def test_budget_and_device_are_in_the_same_report(report):
    assert any("1.0 KiB" in fault.message and fault.remedy for fault in report.faults)
    assert any("cuda:7 is not there" in fault.message and "present: cpu" in fault.remedy for fault in report.faults)


def test_model_is_untouched(folder, tmp_path):
    rules = tmp_path / "wrong.yaml"
    rules.write_text(WRONG)
    model = on_meta(folder)
    before = {name: id(module) for name, module in model.named_modules()}
    with pytest.raises(ktitan.RuleError):
        ktitan.optimize_and_load(model, rules, weights=folder, device="cpu")
    assert {name: id(module) for name, module in model.named_modules()} == before
    assert all(parameter.is_meta for parameter in model.parameters())
