"""Plugins: a user's own Python file or module that registers operators before any rule names them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

from ktitan.errors import IoError, UnsupportedError

__all__ = ["import_plugin"]

_REMEDY = "give a Python file, or a module that Python finds"


def import_plugin(name: str | None) -> None:
    """Run a user's module, which registers operators: a `.py` file, or a module by its dotted name; None is nothing.

    Raises:
        UnsupportedError: there is no such file or module, or it is not Python.
        IoError: the file cannot be read. What the module itself raises is the user's own and keeps its traceback.
    """
    if name is None:
        return
    path = Path(name)
    if not name.endswith(".py"):
        _import_by_name(name)
        return
    if not os.path.isfile(path):
        raise UnsupportedError("no such file", name, _REMEDY)
    _check_source(path)
    spec = importlib.util.spec_from_file_location(f"ktitan_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UnsupportedError("not a Python module", name, _REMEDY)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def _check_source(path: Path) -> None:
    try:
        compile(path.read_bytes(), str(path), "exec")
    except OSError as error:
        raise IoError.of(error, "the plugin cannot be read", path) from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        raise UnsupportedError(f"the plugin is not Python: {error}", where, "correct the file") from error


def _import_by_name(name: str) -> None:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UnsupportedError("not the name of a module", name or "--plugin", _REMEDY)
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module that is missing inside the plugin is the plugin's own fault and keeps its traceback.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UnsupportedError("no such module", name, _REMEDY) from error
