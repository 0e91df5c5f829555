import errno
import os
import pickle

import pytest

import ktitan
from ktitan.errors import Fault, KtitanError


def test_one_fault_reads_as_a_sentence_with_its_place_and_remedy():
    error = ktitan.RuleError("no such operator", "rules.yaml:3", "did you mean linear.torch?")
    assert str(error) == "[RuleError] rules.yaml:3: no such operator\n  remedy: did you mean linear.torch?"
    assert error.code == "RuleError" and len(error.faults) == 1


def test_many_faults_are_numbered_under_one_error():
    faults = [Fault("a", "x:1", "do b"), Fault("c")]
    error = ktitan.WeightError.from_faults(faults, "2 faults")
    assert error.faults == tuple(faults)
    assert str(error).splitlines() == ["[WeightError] 2 faults", "1. x:1: a", "  remedy: do b", "2. c"]


def test_a_single_collected_fault_keeps_its_parts():
    error = ktitan.BudgetError.from_faults([Fault("too much", "ram", "raise it")])
    assert (error.message, error.where, error.remedy) == ("too much", "ram", "raise it")


@pytest.mark.parametrize("error", [ktitan.IoError("m", "w", "r"), KtitanError("Code", "m", "w", "r")])
def test_errors_can_be_pickled(error):
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert (twin.code, str(twin), twin.faults) == (error.code, str(error), error.faults)


def test_names_that_utf8_cannot_say_are_spelled_out():
    """From an index.json, or a path that is no UTF-8: a terminal must not fail over the message."""
    error = ktitan.FormatError("names '\ud800'", "/tmp/\udcff.gguf", "r")
    assert str(error) == "[FormatError] /tmp/\\udcff.gguf: names '\\ud800'\n  remedy: r"


def test_names_out_of_files_cannot_drive_the_terminal():
    error = ktitan.WeightError("no place for it\x07", "\x1b]0;title\x9b \ud800 é 模型", "two\nlines")
    assert str(error) == ("[WeightError] \\x1b]0;title\\x9b \\ud800 é 模型: no place for it\\x07\n  remedy: two\nlines")
    assert error.where.startswith("\x1b")  # programs get the name itself


def test_a_text_lists_the_first_hundred_faults():
    error = ktitan.WeightError.from_faults([Fault(f"fault {number}", "x", "y") for number in range(250)])
    assert len(error.faults) == 250
    assert str(error).endswith("100. x: fault 99\n  remedy: y\nand 150 more")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.EACCES, "right to"), (errno.ENOSPC, "free space"), (errno.EMFILE, "ulimit -n"), (errno.EBUSY, "drive")],
)
def test_what_the_system_refuses_is_said_with_a_remedy(code, remedy):
    error = ktitan.IoError.of(OSError(code, os.strerror(code)), "cannot be read", "/x")
    assert (error.message, error.where) == (f"cannot be read: {os.strerror(code)}", "/x")
    assert remedy in error.remedy
