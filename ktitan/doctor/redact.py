"""Takes out of a text what names its user or machine, so that a report can be shown to anyone."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import pwd
import re
from collections.abc import Iterable
from pathlib import Path

from ktitan.env import secret_values

__all__ = ["Redactor", "redactor"]

_ADDRESSES = (
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])",  # IPv4
    r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{1,4}(?![\w:])",  # IPv6
)
_HOMES = r"(?<![\w.~-])/(home|Users)/[^/\s:]+"  # of others: `sudo ktitan doctor /home/alice` has root's HOME
_TOKENS = r"\b(?:hf|sk|ghp|gho|github_pat|glpat)[_-]\w{8,}"


class Redactor:
    """Replaces homes by ~, users' names in paths, host names, secrets, tokens and network addresses."""

    def __init__(
        self, homes: Iterable[str], users: Iterable[str], hosts: Iterable[str], secrets: Iterable[str]
    ) -> None:
        self._steps = [(re.compile(re.escape(secret)), "<secret>") for secret in _longest_first(secrets)]
        self._steps += [(re.compile(_TOKENS), "<secret>")]
        self._steps += [(re.compile(rf"{re.escape(home)}(?![\w.-])"), "~") for home in _longest_first(homes, 2)]
        self._steps += [(re.compile(_HOMES), r"/\1/<user>")]
        self._steps += [(_word(host), "<host>") for host in _longest_first(hosts, 2)]
        self._steps += [(re.compile(pattern), "<address>") for pattern in _ADDRESSES]
        self._users = [_word(user) for user in _longest_first(users)]

    def __call__(self, text: str) -> str:
        """The text without them."""
        for pattern, instead in self._steps:
            text = pattern.sub(instead, text)
        # A user's name may be a word like any other; only in a path it means the user.
        return " ".join(self._without_users(word) if "/" in word or "@" in word else word for word in text.split(" "))

    def _without_users(self, path: str) -> str:
        for user in self._users:
            path = user.sub("<user>", path)
        return path


def redactor() -> Redactor:
    """The redactor for the user that runs this process, on this machine."""
    homes, users = {str(Path.home())}, set()
    with contextlib.suppress(KeyError):  # a container's user may have no entry
        account = pwd.getpwuid(os.getuid())
        homes.add(account.pw_dir)
        users.add(account.pw_name)
    with contextlib.suppress(KeyError, OSError):
        users.add(getpass.getuser())
    host = platform.node()
    return Redactor(
        homes | {os.path.realpath(home) for home in homes}, users, {host, host.partition(".")[0]}, secret_values()
    )


def _longest_first(words: Iterable[str], least: int = 1) -> list[str]:
    return sorted((word for word in {*words} if len(word) >= least), key=len, reverse=True)


def _word(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(text)}(?![A-Za-z0-9])")
