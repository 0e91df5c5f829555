"""The two READMEs say the same, their commands exist, their Python runs, and no document links to nothing."""

import re

import pytest
from typer.main import get_command

import ktitan
from ktitan.cli.main import app

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^]]*\]\(([^)#\s]+)(#[^)]*)?\)")


def blocks(repository, name, language):
    return [body for kind, body in FENCE.findall((repository / name).read_text("utf-8")) if kind == language]


def code_of(block):
    """A block without comments, and with every text that is not English taken out."""
    lines = (re.sub(r"\s*#.*", "", line) for line in block.splitlines())
    return [re.sub(r'"[^"]*[?\uff1f]"', '"..."', line) for line in lines if line.strip()]


@pytest.mark.parametrize("language", ["", "python", "yaml"])
def test_both_languages_show_the_same_code(repository, language):
    english, chinese = (blocks(repository, name, language) for name in ("README.md", "README.zh-CN.md"))
    assert [code_of(block) for block in english] == [code_of(block) for block in chinese]
    assert english


def test_the_commands_exist(repository):
    command = get_command(app)
    text = "\n".join(blocks(repository, "README.md", ""))
    named = set(re.findall(r"ktitan ([a-z]+)", text))
    assert {"chat", "plan", "verify"} <= named
    assert named <= set(command.commands)


def test_the_options_exist(repository):
    command = get_command(app)
    for line in "\n".join(blocks(repository, "README.md", "")).splitlines():
        words = line.partition("#")[0].split()
        if words[:1] != ["ktitan"]:
            continue
        target = command
        for word in words[1:]:
            if word in getattr(target, "commands", {}):
                target = target.commands[word]
            elif word.startswith("-"):
                assert any(word in option.opts for option in target.params), f"{word} of: {line}"


def test_the_first_python_block_runs(repository, monkeypatch, tiny_gguf, capsys):
    load = ktitan.load
    monkeypatch.setattr(ktitan, "load", lambda name: load(tiny_gguf), raising=False)
    code = blocks(repository, "README.md", "python")[0].replace("max_new_tokens=64", "max_new_tokens=4")
    exec(compile(code.replace("=32", "=4"), "README.md", "exec"), {})
    assert "linear" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "docs"])
def test_every_link_leads_somewhere(repository, name):
    path = repository / name
    for file in sorted(path.rglob("*.md")) if path.is_dir() else [path]:
        for target, anchor in LINK.findall(file.read_text("utf-8")):
            if target.startswith(("http://", "https://")):
                continue
            place = file.parent / target
            assert place.exists(), f"{file.name} links to {target}"
            if anchor:
                assert anchor[1:] in headings(place), f"{file.name} links to {target}{anchor}"


def headings(path):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}
