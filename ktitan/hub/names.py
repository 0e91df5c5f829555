"""How a model on the hub is written: `org/name[@revision][:quant]`, or `org/name/file.gguf[@revision]`.

The quant tag is the one that llama.cpp and ollama know (`org/name:Q4_K_M`); a git reference cannot hold a colon, so the
two ends cannot be mistaken for each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ktitan.errors import WeightError

__all__ = ["FORMS", "HubName", "parse_name", "read_name"]

FORMS = "write org/name, org/name@revision, org/name:Q4_K_M, or org/name/file.gguf"

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(
    rf"(?P<repo>{_PART}/{_PART})"
    r"(?P<file>(?:/[\w.+ -]+)+\.gguf)?"
    r"(?:@(?P<revision>\w[\w.+/-]*))?"
    r"(?::(?P<quant>\w[\w.-]*))?",
    re.ASCII | re.IGNORECASE,
)
_LONGEST_REPO = 96


@dataclass(frozen=True)
class HubName:
    """A model on the hub.

    Attributes:
        repo: `org/name`.
        revision: branch, tag or commit; None is the default branch.
        quant: which of several GGUF models, e.g. "Q4_K_M"; case does not matter.
        file: path of a `.gguf` inside the repository.
    """

    repo: str
    revision: str | None = None
    quant: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repo}{file}{revision}" + (f":{self.quant}" if self.quant else "")


def parse_name(text: str) -> HubName | None:
    """The hub name that `text` spells, or None when it spells none: nothing with `..` ever is one."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    repo, file, revision, quant = (match[part] for part in ("repo", "file", "revision", "quant"))
    if not _is_repo(repo) or (file and quant):
        return None
    if file and not all(piece.strip(". ") for piece in file[1:].split("/")):
        return None
    if revision and (".." in revision or "//" in revision or revision.endswith(("/", "."))):
        return None
    return HubName(repo, revision, quant, file[1:] if file else None)


def _is_repo(repo: str) -> bool:
    """What huggingface_hub's own validation asks of a name (`huggingface_hub.utils.validate_repo_id`)."""
    if len(repo) > _LONGEST_REPO or "--" in repo or ".." in repo or repo.endswith(".git"):
        return False
    return not any(part.endswith(("-", ".")) for part in repo.split("/"))


def read_name(text: str, revision: str | None = None) -> HubName:
    """The hub name of a command's MODEL and `--revision`.

    Raises:
        WeightError: it is none, or two different revisions are given.
    """
    name = parse_name(text)
    if name is None:
        raise WeightError("this is not the name of a model on the hub", text, FORMS)
    if revision is None:
        return name
    if name.revision not in (None, revision):
        raise WeightError(f"two revisions are given: {name.revision} and {revision}", text, "leave one of them out")
    given = parse_name(f"{name.repo}@{revision}")
    if given is None or given.quant is not None:
        raise WeightError(f"{revision!r} is not a revision", "--revision", "give a branch, a tag or a commit")
    return replace(name, revision=revision)
