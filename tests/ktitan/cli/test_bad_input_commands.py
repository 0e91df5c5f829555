"""Bad input at the command line: exit code 2, code, place and remedy on stderr, nothing on stdout, no traceback."""

import errno
import json
import logging
import os
import sys

import pytest
from typer.testing import CliRunner

from ktitan.cli.main import app
from ktitan.cli.plan import write_atomically
from ktitan.errors import IoError

from support.bad_input import config, edit, json_edit, open_folder, readable, without_rights, write
from support.good_models import save_gguf

RULES = r"""version: 1
rules:
  - match: {name: lm_head}
    replace: {class: linear.torch}
"""
SINGLE, SETTINGS = "model.safetensors", "tokenizer_config.json"
HOSTILE = "{{ lipsum.__globals__['os'].popen('touch hit').read() }}"


@pytest.fixture(autouse=True)
def fresh_logging():
    """The command line's log handler keeps the stderr of its process, which is another one for each test here."""
    logger = logging.getLogger("ktitan")
    before, logger.handlers = logger.handlers, []
    yield
    logger.handlers = before


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def assert_refused(result, code, where, message, remedy, shown=False):
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert shown or result.stdout == ""
    for part in (f"[{code}] ", where, message, f"remedy: {remedy}"):
        assert part in result.stderr
    assert "Traceback" not in result.stderr


MODELS = {
    "cut weights": (
        edit(write(SINGLE, b"123456789")),
        "FormatError",
        SINGLE,
        "not a valid safetensors file",
        "copy or",
    ),
    "broken config": (edit(config(hidden_size=0)), "FormatError", "config.json", "hidden_size is 0", "download"),
    "unknown model": (
        edit(config(model_type="##")),
        "UnsupportedError",
        "config.json",
        "'##' is not known",
        "update tran",
    ),
    "wrong shape": (edit(config(vocab_size=140)), "WeightError", "lm_head.weight", "[131, 32]", "config and weights"),
    "pipe": (lambda m, p: os.mkfifo(p / "x") or p / "x", "WeightError", "/x", "a pipe", "give a folder"),
    "nothing": (lambda m, p: p / "x", "WeightError", "/x", "no such file or folder", "give a folder"),
    "architecture": (
        lambda m, p: save_gguf(p / "x.gguf", architecture="nope"),
        "UnsupportedError",
        "x.gguf",
        "'nope'",
        "g",
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "command",
    [
        ["plan", "MODEL", "--json"],
        ["chat", "MODEL", "-p", "hi"],
        ["rules", "check", "llama", "MODEL"],
        ["bench", "cpu", "MODEL"],
    ],
    ids=lambda words: words[0],
)
def test_models(models, tmp_path, name, command):
    make, *expected = MODELS[name]
    given = make(models, tmp_path)
    shown = command[0] == "plan" and name == "wrong shape"  # a plan that was made is shown with its faults
    assert_refused(invoke(*(given if word == "MODEL" else word for word in command)), *expected, shown=shown)


TOKENIZERS = {
    "tokenizer": (write("tokenizer.json", "{"), "FormatError", "tokenizer.json", "not valid JSON", "download"),
    "generation": (
        write("generation_config.json", "{"),
        "FormatError",
        "generation_config.json",
        "not valid",
        "download",
    ),
    "template": (
        json_edit(SETTINGS, lambda s: s.update(chat_template=HOSTILE)),
        "UnsupportedError",
        "chat_template",
        "tries what templates may not do",
        "do not trust",
    ),
    "weights in pickles": (
        lambda folder: (folder / SINGLE).rename(folder / "pytorch_model.bin"),
        "WeightError",
        "model",
        "no weights found",
        "pickles can run code",
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_only_the_chat_asks_for(models, tmp_path, monkeypatch, name):
    step, *expected = TOKENIZERS[name]
    given = edit(step)(models, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert_refused(invoke("chat", given, "-p", "hi"), *expected)
    assert not (tmp_path / "hit").exists()


RULE_FILES = {
    "tag": (
        RULES.replace("linear.torch", "!!python/object/apply:os.system ['touch hit']"),
        "r.yaml:4",
        "YAML tag '!!python/object/apply:os.system' is refused",
        "remove it",
    ),
    "class path": (RULES.replace("linear.torch", "os.system"), "r.yaml:4", "no operator named 'os.system'", "known: "),
    "match class": (RULES.replace("name: lm_head", "class: os.system"), "r.yaml:3", "matches no module", "correct"),
    "include": ("version: 1\ninclude: [../../etc/passwd]\n", "r.yaml:2", "leaves the folder", "includes lie below"),
    "bytes": ("\ud800", "r.yaml:1", "is not UTF-8", "save the file"),
    "empty": ("", "r.yaml:1", "is empty", "start it with"),
}


@pytest.mark.parametrize("name", RULE_FILES)
def test_rule_files_run_nothing(models, tmp_path, monkeypatch, name):
    text, *expected = RULE_FILES[name]
    file = tmp_path / "r.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("a rule ran a command"))
    assert_refused(invoke("rules", "check", file, models.folder), "RuleError", *expected)
    assert os.listdir(tmp_path) == ["r.yaml"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rules", "y" * 5000], ("RuleError", "yyy", "cannot be read", "name a YAML file")),
        (["--rules", "a\0b"], ("RuleError", r"a\x00b", "null byte", "name a YAML file")),
        (["--rules", "/dev/zero"], ("RuleError", "/dev/zero", "larger than 4 MiB", "a rule file is short")),
        (["--gguf-path", "nowhere.gguf"], ("WeightError", "nowhere.gguf", "no such file", "check the path")),
        (["--budget", "ram=" + "9" * 400], ("BudgetError", "budget", "is not a size", "write for example")),
        (["--plugin", "a..b"], ("UnsupportedError", "a..b", "not the name of a module", "give a Python file")),
        (["--device", "junk"], ("HardwareError", "device", "'junk' is not a device", "write")),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, list) else "",
)
def test_options(models, words, expected):
    assert_refused(invoke("plan", models.folder, *words), *expected, shown=True)


@pytest.mark.parametrize(
    ("content", "where", "message"), [("x = (", "mine.py:1", "not Python"), ("\0", "mine.py", "not Python")]
)
def test_plugins_that_are_not_python(models, tmp_path, content, where, message):
    file = tmp_path / "mine.py"
    file.write_text(content)
    result = invoke("plan", models.folder, "--plugin", file)
    assert_refused(result, "UnsupportedError", where, message, "correct the file")


def test_prompts(models, tmp_path):
    (tmp_path / "p").write_bytes(b"ab\xff")
    result = invoke("chat", models.folder, "--prompt-file", tmp_path / "p")
    assert_refused(result, "FormatError", "/p", "not UTF-8 text: byte 2", "save or convert")
    result = invoke("chat", models.folder, "--prompt-file", "/dev/zero")
    assert_refused(result, "FormatError", "/dev/zero", "larger than 64 MiB", "is it the right file?")


class TestFullDrive:
    """Every place that writes: rule files and stdout. Nothing half-written stays."""

    @pytest.mark.parametrize("when", ["write", "replace"])
    def test_a_rule_file_is_whole_or_absent(self, models, tmp_path, monkeypatch, when):
        def full(*_, **__):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        if when == "replace":
            monkeypatch.setattr("ktitan.cli.plan.os.replace", full)
        else:
            real = os.fdopen

            def opened(*arguments, **options):
                file = real(*arguments, **options)
                file.flush = full  # as when the buffer does not fit any more
                file.write = full
                return file

            monkeypatch.setattr("ktitan.cli.plan.os.fdopen", opened)
        target = tmp_path / "plan.yaml"
        target.write_text("old")
        result = invoke("plan", models.folder, "--write", target, "--force")
        assert_refused(result, "IoError", str(target), "No space left on device", "free space")
        assert os.listdir(tmp_path) == ["plan.yaml"] and target.read_text() == "old"

    def test_a_real_full_drive(self, tmp_path):
        """A file system of one page, where root may mount one."""
        place = tmp_path / "tiny"
        place.mkdir()
        if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=4k none {place} 2>/dev/null"):
            pytest.skip("no right to mount")
        try:
            with pytest.raises(IoError, match="No space left") as caught:
                write_atomically(place / "plan.yaml", "x" * 100_000)
            assert caught.value.where == str(place / "plan.yaml") and "free space" in caught.value.remedy
            assert os.listdir(place) == []
        finally:
            os.system(f"umount {place}")

    @pytest.mark.parametrize("words", [["plan", "MODEL"], ["plan", "MODEL", "--json"], ["chat", "MODEL", "-p", "hi"]])
    def test_stdout_without_room(self, models, monkeypatch, capsys, words):
        with open("/dev/full", "w") as full:
            monkeypatch.setattr(sys, "stdout", full)
            with pytest.raises(SystemExit) as ended:
                app([str(models.folder) if word == "MODEL" else word for word in words])
            monkeypatch.undo()
        assert ended.value.code == 2
        assert "[IoError] stdout: the output cannot be written: No space left on device" in capsys.readouterr().err

    @pytest.mark.parametrize("target", ["/dev/full", "folder"])
    def test_what_is_no_file_is_not_replaced(self, tmp_path, target):
        (tmp_path / "folder").mkdir()
        path = tmp_path / target
        with pytest.raises(IoError, match="not a regular file") as caught:
            write_atomically(path, "x")
        assert caught.value.where == str(path) and caught.value.remedy == "name a file"
        assert os.path.exists(path) and not os.path.isfile(path)


def test_no_permission(models):
    with open_folder() as place:
        locked = edit(readable, lambda folder: (folder / SINGLE).chmod(0))(models, place)
        with without_rights():
            refused = invoke("plan", locked), invoke("chat", locked, "-p", "hi")
            with pytest.raises(IoError, match="Permission denied") as caught:
                write_atomically(place / "plan.yaml", "x")
        assert "right to" in caught.value.remedy and caught.value.where.endswith("plan.yaml")
        for result in refused:
            assert_refused(result, "IoError", f"/{SINGLE}", "Permission denied", "give your user the right")


def test_escape_sequences_of_a_file_do_not_reach_the_terminal(models, tmp_path):
    index = {"weight_map": {"a": "\x1b]0;title\x07.safetensors"}}
    given = edit(write("model.safetensors.index.json", json.dumps(index)))(models, tmp_path)
    result = invoke("plan", given)
    assert result.exit_code == 2 and "\x1b" not in result.stderr and r"\x1b]0;title" in result.stderr


def test_every_fault_of_a_model_is_listed_at_once(models, tmp_path):
    given = edit(config(num_hidden_layers=3, vocab_size=140))(models, tmp_path)
    result = invoke("chat", given, "-p", "hi")
    assert_refused(result, "WeightError", "model.layers.2.mlp.up_proj.weight", "11 faults", "give the file")
    assert "11. " in result.stderr
