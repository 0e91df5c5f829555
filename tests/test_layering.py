"""The import arrows of docs/architecture.md: who may import whom, read from the sources."""

import ast
import shutil
from pathlib import Path

import pytest

# Unit -> units it may import. A unit is a module or package directly below ktitan, or the folder `operators`.
ALLOWED = {
    "errors": set(),
    "env": set(),
    "cgroups": set(),
    "cpuinfo": {"cgroups"},
    "nvidia": {"cgroups"},
    "registry": {"errors"},
    "kv_formats": {"errors"},
    "context": {"kv_formats", "errors"},
    "fingerprint": set(),
    "shells": set(),
    "hardware": {"cgroups", "cpuinfo", "errors", "env"},
    "native": {"errors", "env", "hardware", "formats"},
    "lowering": {"native"},
    "formats": {"errors", "registry"},
    "tiers": {"formats", "native", "errors"},
    "weights": {"formats", "registry", "errors"},
    "rules": {"errors", "registry"},
    "operator": {"context", "errors", "formats", "hardware"},
    "operators": {"operator", "lowering", "context", "registry", "errors", "formats", "native", "tiers", "hardware"},
    "plan": {"rules", "weights", "formats", "hardware", "registry", "operator", "tiers", "kv_formats", "errors"},
    "inject": {"plan", "weights", "operator", "context", "fingerprint", "shells", "tiers", "errors"},
    "engine": {"context", "fingerprint", "native", "tiers", "kv_formats", "errors"},
    "program": {"lowering", "operator", "context", "native", "shells", "errors"},
    "planner": {"plan", "rules", "hardware", "tiers", "errors"},
    "hub": {"registry", "tiers", "errors"},
    "api": {
        "hub",
        "planner",
        "inject",
        "plan",
        "rules",
        "weights",
        "engine",
        "program",
        "native",
        "operators",
        "operator",
        "registry",
        "hardware",
        "tiers",
        "formats",
        "kv_formats",
        "errors",
        "env",
    },
    "local_chat": {"api", "planner", "errors", "env", "tiers"},
    "bench": {"api", "planner", "hardware", "errors", "env", "tiers"},
    "doctor": {"api", "weights", "cgroups", "hardware", "nvidia", "native", "errors", "env"},
    "server": {"api", "errors"},
    "verify": {"api", "engine", "errors", "tiers"},
    "convert": {"api", "plan", "weights", "formats", "native", "tiers", "errors"},
    "cli": {
        "api",
        "hub",
        "planner",
        "local_chat",
        "server",
        "bench",
        "doctor",
        "verify",
        "convert",
        "hardware",
        "nvidia",
        "errors",
        "env",
        "tiers",
    },
    "injection_rules": set(),
    "__init__": {"api", "env", "errors", "operator", "registry", "verify"},
}


def dynamic_name(node: ast.AST) -> str:
    """The module that a call of `import_module` or `__import__` with a literal names, or ""."""
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
        return ""
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return str(node.args[0].value) if called in ("import_module", "__import__") else ""


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The dotted module that `from x import y` names, relative ones resolved in `package`."""
    if not node.level:
        return node.module or ""
    home = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*home, *([node.module] if node.module else [])])


def package_of(path: Path, root: Path) -> str:
    """The import name of the package that a file is in."""
    parts = path.relative_to(root).parts[:-1]
    return ".".join(parts if parts[0] == "ktitan" else ("ktitan", *parts))


def imported(tree: ast.AST, package: str) -> set[str]:
    """Dotted names imported anywhere in a module, but for those under `if TYPE_CHECKING:`."""
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, package)
            names |= {f"{module}.{alias.name}" for alias in node.names} | {module}
        elif dynamic_name(node):
            names.add(dynamic_name(node))
    return names


def unit_of(path: Path, root: Path) -> str:
    first, *rest = path.relative_to(root).parts
    if first != "ktitan":
        return first
    return rest[0].removesuffix(".py")


def wrong_arrows(root: Path) -> list[str]:
    """Every import that the table does not allow, as "file -> unit"."""
    wrong = []
    for folder in ("ktitan", "operators", "injection_rules"):
        for path in sorted((root / folder).rglob("*.py")):
            unit = unit_of(path, root)
            for name in imported(ast.parse(path.read_text("utf-8")), package_of(path, root)):
                pieces = name.split(".")
                if pieces[0] != "ktitan" or len(pieces) < 2:
                    continue
                target = pieces[1]
                known = (root / "ktitan" / target).exists() or (root / "ktitan" / f"{target}.py").exists()
                if target in ("operators", "injection_rules"):
                    known = True
                if known and target != unit and target not in ALLOWED.get(unit, set()):
                    wrong.append(f"{path.relative_to(root)} -> {target}")
    return sorted(set(wrong))


def private_sibling_imports(root: Path) -> list[str]:
    """Names with a leading underscore that an operator takes from another file."""
    found = []
    for path in sorted((root / "operators").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ktitan.operators"):
                found += [f"{path.name}: {a.name}" for a in node.names if a.name.startswith("_")]
    return found


def test_every_import_follows_an_arrow(repository):
    assert wrong_arrows(repository) == []


def test_every_unit_is_in_the_table(repository):
    units = {unit_of(p, repository) for p in (repository / "ktitan").rglob("*.py")}
    assert units <= set(ALLOWED)


def test_operators_keep_out_of_each_others_private_names(repository):
    assert private_sibling_imports(repository) == []


@pytest.mark.parametrize(
    ("file", "line", "arrow"),
    [
        ("operators/norm.py", "import ktitan.plan", "operators/norm.py -> plan"),
        ("ktitan/engine/sampling.py", "from ktitan.api import load", "ktitan/engine/sampling.py -> api"),
        ("ktitan/rules/match.py", "def f():\n    from ktitan import inject", "ktitan/rules/match.py -> inject"),
        ("ktitan/hardware.py", "from .api import load", "ktitan/hardware.py -> api"),
        ("ktitan/engine/sampling.py", "from ..plan import Plan", "ktitan/engine/sampling.py -> plan"),
        ("operators/linear/torch.py", "from ...rules import Rule", "operators/linear/torch.py -> rules"),
        ("ktitan/rules/match.py", 'importlib.import_module("ktitan.api")', "ktitan/rules/match.py -> api"),
    ],
)
def test_an_arrow_added_on_purpose_is_found(repository, tmp_path, file, line, arrow):
    for folder in ("ktitan", "operators", "injection_rules"):
        shutil.copytree(repository / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / file
    path.write_text(path.read_text("utf-8") + f"\n\n{line}\n", "utf-8")
    assert wrong_arrows(tmp_path) == [arrow]


def users_of(repository, *words):
    """Files of the package whose code (not text) names one of `words`."""
    found = set()
    for folder in ("ktitan", "operators"):
        for path in (repository / folder).rglob("*.py"):
            nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
            names = {getattr(n, "attr", getattr(n, "id", "")) for n in nodes}
            names |= {alias.name for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for alias in n.names}
            if names & set(words):
                found.add(str(path.relative_to(repository)))
    return found


def test_only_inject_edits_a_users_module_tree(repository):
    editors = users_of(repository, "set_submodule", "register_forward_hook", "register_forward_pre_hook")
    inject = {"foresee", "hops", "journal", "lora", "phases", "recording"}
    assert editors == {f"ktitan/inject/{name}.py" for name in inject}


def test_only_native_touches_ctypes(repository):
    importers = {
        str(path.relative_to(repository))
        for folder in ("ktitan", "operators")
        for path in (repository / folder).rglob("*.py")
        if any(name.partition(".")[0] == "ctypes" for name in imported(ast.parse(path.read_text("utf-8")), "ktitan"))
    }
    assert all(path.startswith("ktitan/native/") for path in importers)


def test_only_env_reads_the_environment(repository):
    readers = [
        path.name
        for folder in ("ktitan", "operators")
        for path in (repository / folder).rglob("*.py")
        if "environ" in path.read_text("utf-8") or "getenv" in path.read_text("utf-8")
    ]
    assert readers == ["env.py"]
