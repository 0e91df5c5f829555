"""Where the library meets the terminal: exit codes, error text, log lines, and a reader who goes away."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ktitan.env import log_level
from ktitan.errors import IoError, KtitanError, UnsupportedError

__all__ = ["APP_OPTIONS", "CONTEXT_SETTINGS", "GuardedCommand", "GuardedGroup"]

USERS_ERROR, INTERRUPTED = 2, 130
# Older versions of typer take it from click, newer ones have their own.
USAGE_ERROR: Any = typer.BadParameter.__base__
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# Plain help can be searched and answers soonest; a fault shows Python's own traceback, without any locals.
APP_OPTIONS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


CONTEXT_SETTINGS: dict[str, Any] = {"token_normalize_func": _hyphens, "help_option_names": ["-h", "--help"]}


class GuardedCommand(TyperCommand):
    """A command whose errors become exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; see `guarded`."""
        return guarded(partial(super().invoke, ctx))


class GuardedGroup(TyperGroup):
    """A group of commands whose errors become exit codes."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that `args` begin with; a model in its place is told from a misspelled command."""
        try:
            return super().resolve_command(ctx, args)
        except USAGE_ERROR as error:
            name = args[0]
            if ctx.parent is None and (name == "demo" or "/" in name or name.endswith(".gguf") or os.path.exists(name)):
                error.message += f" A model is given as an option: ktitan -m {name}"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; see `guarded`."""
        return guarded(partial(super().invoke, ctx))


def guarded(action: Callable[[], Any]) -> Any:
    """The result of `action`, its KtitanErrors as text on stderr.

    Exit codes: 2 for every KtitanError, 130 after Ctrl-C, and 0 without a word when nobody reads stdout any more
    (`| head -1`). Any other exception is a fault of ktitan itself and passes: Python prints it and exits with 1.
    """
    try:
        _start_logging()
        result = action()
        sys.stdout.flush()
    except KtitanError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USERS_ERROR) from error
    except BrokenPipeError:
        _drop_stdout()
        raise typer.Exit(0) from None
    except OSError as error:
        # Without a file's name it is stdout that has no room: `ktitan plan ... > full-drive/plan.txt`.
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        _drop_stdout()
        typer.echo(str(IoError.of(error, "the output cannot be written", "stdout")), err=True)
        raise typer.Exit(USERS_ERROR) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    return result


def _drop_stdout() -> None:
    """Python flushes stdout when it ends, and would complain about it once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _start_logging() -> None:
    """ktitan's log lines go to stderr, at the level that KTITAN_LOG names."""
    level = logging.getLevelName(log_level())
    if not isinstance(level, int):
        raise UnsupportedError(
            f"{log_level()!r} is not a log level", "KTITAN_LOG", "set it to debug, info, warning or error"
        )
    logger = logging.getLogger("ktitan")
    logger.setLevel(level)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
