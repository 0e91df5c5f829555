"""Size budgets and forbidden habits, so that they need no reviewer's memory."""

import ast
import re
import statistics

import pytest

MEDIAN_FILE, LONGEST_FILE, LONGEST_FUNCTION = 200, 600, 80


def sources(repository):
    for folder in ("ktitan", "operators"):
        yield from sorted((repository / folder).rglob("*.py"))


def functions(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_files_are_small(repository):
    lengths = {path: path.read_text("utf-8").count("\n") for path in sources(repository)}
    assert statistics.median(lengths.values()) <= MEDIAN_FILE
    assert {str(path): n for path, n in lengths.items() if n > LONGEST_FILE} == {}


def test_functions_are_small(repository):
    lengths = [(n.end_lineno - n.lineno + 1, f"{p}:{n.name}") for p in sources(repository) for n in functions(p)]
    assert [name for length, name in lengths if length > LONGEST_FUNCTION] == []
    assert statistics.quantiles([length for length, _ in lengths], n=10)[8] <= 35


@pytest.mark.parametrize("pattern", [r"^\s*print\(", r"except\s*:", r"\bsys\.path\b", r"^\s*assert\b", r"\bTODO\b"])
def test_forbidden_habits(repository, pattern):
    hits = [
        f"{path}:{number}"
        for path in sources(repository)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert hits == []
