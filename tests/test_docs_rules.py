"""docs/rules.md: every file in it plans, or is wrong in exactly the words shown; commands run."""

import ast
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Glm4MoeConfig
from typer.testing import CliRunner

from ktitan.api import plan_model
from ktitan.cli.main import app
from ktitan.errors import KtitanError
from ktitan.hardware import Cpu, Gpu, Hardware, Memory
from ktitan.local_chat.plugin import import_plugin
from ktitan.plan import make_plan
from ktitan.registry import operators
from ktitan.rules import parse_rules
from ktitan.tiers import UNLIMITED, parse_budget
from ktitan.weights.safetensors_source import open_safetensors

GIB = 1 << 30
PAGE = Path(__file__).resolve().parent.parent / "docs" / "rules.md"
SIZES = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 256,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
}


def blocks():
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


def named(text):
    """The file that a YAML block is: its first line may say so."""
    found = re.match(r"# (\w+\.yaml)\n", text)
    return found[1] if found else "rules.yaml"


def yaml_blocks():
    """(file name, text, error or "") of each YAML block; an error is the next block."""
    found = blocks()
    following = [*found[1:], ("", "")]
    return [
        (named(text), text, error if language == "text" else "")
        for (kind, text), (language, error) in zip(found, following, strict=True)
        if kind == "yaml"
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, repository):
    """A folder with the model in `glm` and `experts`, the page's named files, and the example's operator."""
    home = tmp_path_factory.mktemp("docs")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Glm4MoeConfig(**SIZES), dtype=torch.float32)
    for name in ("glm", "experts"):
        model.save_pretrained(home / name)
    for name, text, _ in yaml_blocks():
        if name != "rules.yaml":
            (home / name).write_text(text)
    plugin = home / "custom_operator.py"
    plugin.write_text((repository / "examples" / "custom_operator.py").read_text())
    import_plugin(str(plugin))
    yield home
    operators.remove("mlp.fused")


@pytest.fixture(scope="module")
def stock():
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(Glm4MoeConfig(**SIZES), dtype=torch.float32)


@pytest.fixture
def plan(folder, stock, monkeypatch):
    """Plans a rule file of the folder for a machine with two GPUs."""
    monkeypatch.chdir(folder)
    cards = tuple(Gpu(i, "card", 80 * GIB, 80 * GIB, (9, 0)) for i in range(2))
    hardware = Hardware(Cpu("test", frozenset(), 4, 4, 4), Memory(64 * GIB, 64 * GIB, None), cards)
    sources = [open_safetensors(Path("glm")), open_safetensors(Path("experts"))]

    def make(name, text, budget=UNLIMITED):
        Path(name).write_text(text)
        rules = parse_rules(name)
        made = make_plan(stock, rules, sources, hardware=hardware, budget=budget, device="cuda:0")
        made.check()
        return made

    return make


@pytest.mark.parametrize(("name", "text", "error"), yaml_blocks(), ids=lambda value: value[:24])
def test_each_file_plans_or_is_wrong_as_shown(plan, name, text, error):
    if not error:
        assert plan(name, text).decisions
        return
    with pytest.raises(KtitanError) as caught:
        plan(name, text)
    assert f"{caught.value}\n" == error


def test_the_page_has_both_kinds():
    assert sum(not error for *_, error in yaml_blocks()) > 6
    assert [len(re.findall(r"^\d+\. ", error, re.M)) for *_, error in yaml_blocks() if error] == [10]


RULE = "version: 1\nrules:\n  - match: {{{}}}\n    replace: {{{}}}\n"
ALL = RULE.format("name: '.*experts'", "class: keep")

# Text of the table of errors -> a file that gives it, where the page's own wrong file does not.
OTHERS = {
    "fully shadowed": RULE.format("name: '.*norm', layers: 0-2", "class: norm.torch")
    + "  - match: {name: '.*input_layernorm'}\n    replace: {class: keep}\n",
    "YAML syntax error": RULE.format('name: "model\\.norm"', "class: keep"),
    "keep takes no 'dtype'": RULE.format("name: lm_head", "class: keep, kwargs: {dtype: float32}"),
    "a stock module": RULE.format("name: lm_head", "class: keep, prefill: {class: linear.torch}"),
    "there is no rule file": "version: 1\ninclude: [part.yaml]\n",
    "source 'q8.gguf'": RULE.format("name: lm_head", "class: linear.torch, source: q8.gguf"),
    "cannot keep": RULE.format("name: '.*norm'", "class: keep, kwargs: {home: nvme}"),
    "the budget allows": ALL,
}


def table():
    """First cells of the table of errors."""
    rows = PAGE.read_text("utf-8").partition("| error | cause | remedy |\n|---|---|---|\n")[2].partition("\n\n")[0]
    return [re.match(r"\| `(.*?)` \|", row)[1] for row in rows.splitlines()]


@pytest.mark.parametrize("message", table())
def test_each_error_of_the_table_is_a_real_one(plan, message):
    if any(message in error for *_, error in yaml_blocks()):
        return
    (text,) = [text for start, text in OTHERS.items() if message.startswith(start)]
    budget = parse_budget("vram=1KiB") if message == "the budget allows" else UNLIMITED
    with pytest.raises(KtitanError) as caught:
        plan("rules.yaml", text, budget)
    assert message in str(caught.value)


def commands():
    return [line for kind, text in blocks() if kind == "sh" for line in text.splitlines()]


def test_commands_run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for written in ("written.yaml", "mine.yaml"):
        Path(written).unlink(missing_ok=True)
    for line in commands():
        program, *words = line.split()
        if "--plugin" in words:
            operators.remove("mlp.fused")  # which the fixture imported, too
        result = CliRunner().invoke(app, words)
        assert (program, result.exit_code) == ("ktitan", 0), f"{line}\n{result.output}"
    shown = next(text for name, text, _ in yaml_blocks() if name == "mine.yaml")
    assert shown.partition("\n")[2] == Path("mine.yaml").read_text()


def test_what_the_page_says_of_the_automatic_plan(folder):
    origin = plan_model(folder / "glm", device="cpu").origin
    assert f"`rules: {origin}`" in PAGE.read_text("utf-8")


def test_python_blocks_parse():
    assert [ast.parse(text) for kind, text in blocks() if kind == "python"]
