"""Every error and fault that the library makes says what the user can do about it."""

import ast

import pytest

from ktitan import errors

NAMES = {"Fault", *(kind.__name__ for kind in errors.KtitanError.__subclasses__()[0].__subclasses__())}


def without_remedy(text):
    """Lines that make an error or a fault with neither a third argument nor `remedy=` (or faults that have theirs)."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) in NAMES
        and len(node.args) < 3
        and not {keyword.arg for keyword in node.keywords} & {"remedy", "faults"}
    ]


def test_every_error_has_a_remedy(repository):
    missing = {}
    for folder in ("ktitan", "operators"):
        for path in sorted((repository / folder).rglob("*.py")):
            lines = without_remedy(path.read_text("utf-8"))
            if lines:
                missing[path.relative_to(repository).as_posix()] = lines
    assert missing == {}


def test_the_closed_list_is_known():
    assert {*errors.__all__} - {"KtitanError", "printable", "translated"} == NAMES


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('raise RuleError("what")', [1]),
        ('raise errors.IoError("what", "where") from error', [1]),
        ('return Fault("what", where="where")', [1]),
        ('raise RuleError("what", "where", "remedy")', []),
        ('raise RuleError("what", remedy="remedy")', []),
        ("raise RuleError.from_faults(faults)", []),
        ('raise ValueError("what")', []),
    ],
)
def test_what_counts_as_a_remedy(line, found):
    assert without_remedy(line) == found
