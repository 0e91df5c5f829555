"""Writes docs/errors.md from the sources: every error and fault that ktitan can report, and what helps.

    python docs/make_errors.py            # or: make docs
    python docs/make_errors.py --check    # exit 1 when the page is out of date

Only the syntax trees are read, nothing is imported. A site is a call of an error class or of `Fault`, or of one of the
collectors in `COLLECTORS`; `{placeholders}` stand for what a message fills in.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "errors.md"
COMMAND = "make docs"
# Methods that collect a fault: which argument is the message, which the remedy. The class is that of their package.
COLLECTORS = {"add": (1, 2), "_note": (1, 2)}
# The class of faults that are handed up to a caller, by package.
BY_PACKAGE = {"rules": "RuleError", "plan": "RuleError", "weights": "WeightError", "engine": "UnsupportedError"}
# Calls that say the same of their argument in other words.
TRANSPARENT = ("join", "sorted", "str", "repr", "list", "min", "max", "int", "ord", "shorten", "map", "Path")
HEAD = """# Errors

Written by `docs/make_errors.py` from the sources; do not edit, run `{command}`.

Everything that a user can cause or remedy is a `ktitan.KtitanError`. It says what is wrong, where (`file:line`, a file,
a module's path, a tensor's name) and what helps; all of that are attributes, too (`code`, `message`, `where`, `remedy`,
`faults`). Faults of one kind come together, numbered, so that one run is enough to correct them all. Nothing is left
half done: a model that could not be loaded is as it was.

| exit code of a command | means |
|---|---|
| 0 | done |
| 2 | a `KtitanError`, or wrong options: something that you can change; the text says what |
{files}| 130 | Ctrl-C |
| 1 | a fault of ktitan itself, with a traceback: please report it; `ktitan doctor` also ends with 1 where ktitan cannot work |

Look for a part of the message that does not change; `{{names in braces}}` stand for what a message fills in.

| code | means | messages |
|---|---|---|
"""


@dataclass(frozen=True, order=True)
class Site:
    """One place that makes an error or fault."""

    code: str
    module: str
    line: int
    message: str
    remedy: str


def main() -> None:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    page = make_page(ROOT)
    if not parser.parse_args().check:
        PAGE.write_text(page, "utf-8")
    elif not PAGE.is_file() or PAGE.read_text("utf-8") != page:
        sys.exit(f"docs/errors.md is out of date; run: {COMMAND}")


def make_page(root: Path) -> str:
    """The text of docs/errors.md for the sources below `root`."""
    meanings = error_classes(root)
    sites = all_sites(root, set(meanings))
    # Told apart only as long as the code does so.
    apart = "isinstance(error, IoError)" in (root / "ktitan/local_chat/terminal.py").read_text("utf-8")
    files = "| 1 | an `IoError`: a drive or file failed |\n" if apart else ""
    lines = [HEAD.format(command=COMMAND, files=files)]
    for code, meaning in meanings.items():
        count = len({(site.message, site.remedy) for site in sites if site.code == code})
        lines.append(f"| [{code}](#{code.lower()}) | {escaped(meaning)} | {count} |\n")
    for code, meaning in meanings.items():
        lines.append(f"\n## {code}\n\n{meaning}\n")
        for module in sorted({site.module for site in sites if site.code == code}):
            lines.append(f"\n### {module}\n\n| message | what helps |\n|---|---|\n")
            rows = [
                f"| {quoted(one.message)} | {escaped(one.remedy)} |\n"
                for one in sites
                if (one.code, one.module) == (code, module)
            ]
            lines += dict.fromkeys(rows)
    return "".join(lines)


def error_classes(root: Path) -> dict[str, str]:
    """Name -> first line of the docstring of every error class, in the order of ktitan/errors.py."""
    tree = ast.parse((root / "ktitan" / "errors.py").read_text("utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    named = [node for node in classes if [getattr(base, "id", "") for base in node.bases] == ["_NamedError"]]
    return {node.name: (ast.get_docstring(node) or "").partition("\n")[0] for node in named}


def all_sites(root: Path, codes: set[str]) -> list[Site]:
    """Every site below ktitan/ and operators/, by code, module and line."""
    trees = {
        path.relative_to(root).as_posix(): ast.parse(path.read_text("utf-8"))
        for folder in ("ktitan", "operators")
        for path in sorted((root / folder).rglob("*.py"))
    }
    trees.pop("ktitan/errors.py")
    shared = {name: text for tree in trees.values() for name, text in assigned(tree.body).items() if name.isupper()}
    raised_as = dict(pair for tree in trees.values() for pair in handed_up(tree, codes))
    return sorted(site for name, tree in trees.items() for site in Module(name, tree, codes, raised_as, shared).sites())


def called(node: ast.AST) -> str:
    """The last part of the name that a call calls, or ""."""
    return getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""


def handed_up(tree: ast.AST, codes: set[str]) -> Iterator[tuple[str, str]]:
    """(function, code) where a function's faults become one class: `add_problem(X, f())`, `X.from_faults(f())`."""
    for node in ast.walk(tree):
        code = class_of(node, codes)
        for argument in node.args if code and isinstance(node, ast.Call) else ():
            if called(argument):
                yield called(argument), code


def class_of(node: ast.AST, codes: set[str]) -> str:
    """The class that a call of `from_faults` or `add_problem` names, or ""."""
    if not isinstance(node, ast.Call):
        return ""
    holder: ast.AST | None = None
    if called(node) == "from_faults" and isinstance(node.func, ast.Attribute):
        holder = node.func.value
    elif called(node) == "add_problem" and node.args:
        holder = node.args[0]
    name = getattr(holder, "id", "")
    return name if name in codes else ""


class Module:
    """The sites of one file."""

    def __init__(
        self, name: str, tree: ast.Module, codes: set[str], raised_as: dict[str, str], shared: dict[str, ast.expr]
    ) -> None:
        self._name, self._tree, self._codes, self._raised_as = name, tree, codes, raised_as
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._constants = {**shared, **assigned(tree.body), **returned(tree)}

    def sites(self) -> Iterator[Site]:
        """Every call that makes an error or fault whose message stands here."""
        for node in ast.walk(self._tree):
            found = self._parts(node)
            if found is None or not isinstance(node, ast.Call):
                continue
            message, remedy = (self._text(part, node) for part in found[1:])
            if re.sub(r"\{[^}]*\}", "", message).strip(" :"):  # else the caller gives it
                yield Site(found[0], self._name, node.lineno, message, remedy)

    def _parts(self, node: ast.AST) -> tuple[str, ast.expr | None, ast.expr | None] | None:
        """Code, message and remedy of a site."""
        name = called(node)
        if not isinstance(node, ast.Call):
            return None
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in self._codes or name == "Fault":
            message, remedy = self._argument(node, 0), given.get("remedy") or self._argument(node, 2)
            return (self._code(node) if name == "Fault" else name), given.get("message") or message, remedy
        if name == "from_faults" and class_of(node, self._codes):
            return class_of(node, self._codes), given.get("summary") or self._argument(node, 1), None
        package = self._name.split("/")[1] if self._name.count("/") > 1 else ""
        if name in COLLECTORS and isinstance(node.func, ast.Attribute) and package in BY_PACKAGE and len(node.args) > 1:
            if name == "add" and "log" not in ast.unparse(node.func):
                return None
            message, remedy = (self._argument(node, place) for place in COLLECTORS[name])
            return BY_PACKAGE[package], message, remedy
        if name == "fault" and isinstance(node.func, ast.Attribute) and node.args:
            return "FormatError", node.args[0], self._argument(node, 1) or self._default(name)
        return None

    def _default(self, method: str) -> ast.expr | None:
        """The default of the last parameter of a method of this module."""
        found = [node for node in ast.walk(self._tree) if isinstance(node, ast.FunctionDef) and node.name == method]
        return found[0].args.defaults[-1] if found and found[0].args.defaults else None

    @staticmethod
    def _argument(node: ast.Call, index: int) -> ast.expr | None:
        return node.args[index] if index < len(node.args) else None

    def _above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self._parents:
            node = self._parents[node]
            yield node

    def _code(self, node: ast.AST) -> str:
        """The class as which a `Fault` is raised: by the call around it, its function, callers, module, package."""
        above = list(self._above(node))
        for outer in above:
            if class_of(outer, self._codes):
                return class_of(outer, self._codes)
        functions = [outer for outer in above if isinstance(outer, ast.FunctionDef)]
        for scope in (*functions[:1], self._tree):
            for function in functions:
                if function.name in self._raised_as:
                    return self._raised_as[function.name]
            found = {class_of(inner, self._codes) for inner in ast.walk(scope)} - {""}
            if len(found) == 1:
                return found.pop()
        return BY_PACKAGE.get(self._name.split("/")[1], "PlanError")

    def _text(self, node: ast.expr | None, site: ast.Call) -> str:
        """An expression as text: constants as they are, everything else as a {placeholder}."""
        names = dict(self._constants)
        for function in reversed([outer for outer in self._above(site) if isinstance(outer, ast.FunctionDef)]):
            inner = [part for part in ast.walk(function) if getattr(part, "lineno", site.lineno + 1) <= site.lineno]
            names |= assigned(
                sorted((part for part in inner if isinstance(part, ast.stmt)), key=lambda part: part.lineno)
            )
        return " ".join(rendered(node, names).split()) if node is not None else ""


def assigned(statements: list[ast.stmt]) -> dict[str, ast.expr]:
    """Plain names -> the text expression that they were last given."""
    found: dict[str, ast.expr] = {}
    for node in statements:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return {name: value for name, value in found.items() if is_text(value)}


def returned(tree: ast.Module) -> dict[str, ast.expr]:
    """Function name with "()" -> all texts that it returns, as alternatives."""
    found: dict[str, ast.expr] = {}
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
        if values and all(is_text(value) for value in values):
            found[f"{function.name}()"] = ast.BoolOp(ast.Or(), values)
    return found


def is_text(node: ast.expr) -> bool:
    """Whether an expression makes text that can be shown."""
    if isinstance(node, ast.IfExp):
        return is_text(node.body) and is_text(node.orelse)
    if isinstance(node, ast.BinOp):
        return is_text(node.left) or is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def rendered(node: ast.expr, names: dict[str, ast.expr], depth: int = 0) -> str:
    """See `Module._text`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(rendered(part, names, depth) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return rendered(node.value, names, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and is_text(node):
        return rendered(node.left, names, depth) + rendered(node.right, names, depth)
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return " / ".join(rendered(value, names, depth) for value in node.values)
    if isinstance(node, ast.IfExp) and is_text(node):
        parts = [rendered(part, names, depth) for part in (node.body, node.orelse)]
        return " / ".join(part for part in parts if part)
    if isinstance(node, ast.Name) and node.id in names and depth < 3:
        return rendered(names[node.id], names, depth + 1)
    if f"{called(node)}()" in names and depth < 3:
        return rendered(names[f"{called(node)}()"], names, depth + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
        return f"{{{label(node.left)} {'-' if isinstance(node.op, ast.Sub) else '+'} {node.right.value}}}"
    return f"{{{label(node)}}}"


def label(node: ast.AST) -> str:
    """A short name for what an expression gives."""
    if isinstance(node, ast.Name):
        return node.id.strip("_").lower() if node.id.isupper() else node.id.strip("_")
    if isinstance(node, ast.Attribute):
        owner = label(node.value)
        return owner if node.attr in ("value", "name") and owner != "self" else node.attr.strip("_")
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Call):
        name = called(node)
        if name == "len":
            return f"number of {label(node.args[0])}"
        if name in TRANSPARENT and node.args:
            return label(node.args[-1 if name == "map" else 0])
        if name in ("nearest", "describe"):
            return {"nearest": "the nearest valid name", "describe": "what it is"}[name]
        return label(node.func if node.args or not isinstance(node.func, ast.Attribute) else node.func.value)
    if isinstance(node, ast.IfExp):
        return label(node.body)
    inner = next((part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)), None)
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        inner = node.generators[0].iter
    return label(inner) if inner is not None else "value"


def quoted(text: str) -> str:
    """Text as code in a table."""
    ticks = "``" if "`" in text else "`"
    padding = " " if "`" in text else ""
    return f"{ticks}{padding}{text}{padding}{ticks}".replace("|", "\\|")


def escaped(text: str) -> str:
    """Text in a table, with what Markdown would take for markup made harmless."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part.replace("|", "\\|") if part.startswith("`") else re.sub(r"([|<*])", r"\\\1", part) for part in parts
    )


if __name__ == "__main__":
    main()
