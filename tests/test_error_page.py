"""docs/errors.md is what docs/make_errors.py makes of the sources, and the generator sees what it should."""

import importlib.util
import re
import sys

import pytest

from ktitan import errors


@pytest.fixture(scope="module")
def maker(repository):
    spec = importlib.util.spec_from_file_location("make_errors", repository / "docs" / "make_errors.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_sources_say(maker, repository):
    page = (repository / "docs" / "errors.md").read_text("utf-8")
    assert page == maker.make_page(repository), "run: make docs"


def test_every_class_is_there_with_its_meaning(maker, repository):
    page = maker.make_page(repository)
    for kind in errors.KtitanError.__subclasses__()[0].__subclasses__():
        assert f"\n## {kind.__name__}\n\n{kind.__doc__.splitlines()[0]}\n" in page


def test_messages_of_all_kinds_of_sites_are_found(maker, repository):
    page = maker.make_page(repository)
    for part in ("is there twice", "matches no module", "key {text} is given twice", "no operator named {name}"):
        assert part in page
    # Only the line above several faults has no remedy of its own.
    bare = re.findall(r"^\| `(.*)` \|  \|$", page, re.M)
    assert all(message.startswith("{number of ") for message in bare)


def one_module(tmp_path, source):
    for name, text in {
        "ktitan/errors.py": "class RuleError(_NamedError):\n    '''Rules.'''\n",
        "ktitan/x.py": source,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize(
    ("source", "row"),
    [
        ('raise RuleError("plain", "w", "do this")', ("plain", "do this")),
        (
            'raise RuleError(f"{len(names)} of {one.path!r}", remedy=HELP)\nHELP = "x"',
            ("{number of names} of {path}", "x"),
        ),
        ('def f():\n    m = f"a {b}"\n    raise RuleError(m, "w", r if c else "y")', ("a {b}", "{r}")),
        ('def f():\n    raise RuleError("a" "b", "w", g())\ndef g():\n    return "one"', ("ab", "one")),
        ('def f():\n    return Fault("small", "w", "r")\nRuleError.from_faults(f(), "sum")', ("small", "r")),
    ],
)
def test_how_an_expression_is_shown(maker, tmp_path, source, row):
    one_module(tmp_path, source)
    sites = maker.all_sites(tmp_path, {"RuleError"})
    assert row in [(site.message, site.remedy) for site in sites]
    assert {site.code for site in sites} == {"RuleError"}
