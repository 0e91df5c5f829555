"""What huggingface_hub raises, as errors that say what helps."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ktitan.errors import IoError, KtitanError, WeightError
from ktitan.hub.names import HubName

__all__ = ["hub_failures", "is_out_of_reach"]

_LOGIN = "`hf auth login`, or set HF_TOKEN"
_BUSY, _SERVER = 429, 500
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def hub_failures(name: HubName) -> Iterator[None]:
    """Turn what huggingface_hub raises into errors about `name`.

    Raises:
        WeightError: the hub does not give it, or cannot be reached.
        IoError: the cache cannot be written.
    """
    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        raise _error_for(name, _cause(error)) from error


def is_out_of_reach(error: BaseException) -> bool:
    """Whether a failure is the network's or the server's, so that a cached copy may stand in."""
    if isinstance(error, HfHubHTTPError):
        return _status(error) == _BUSY or _status(error) >= _SERVER
    return isinstance(error, HTTPError | OfflineModeIsEnabled)


def _cause(error: BaseException) -> BaseException:
    """The failure below huggingface_hub's remark that the cache does not hold the file either."""
    while isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: HfHubHTTPError) -> int:
    return int(error.response.status_code)


def _error_for(name: HubName, error: BaseException) -> KtitanError:
    where = str(name)
    page = f"{constants.ENDPOINT}/{name.repo}"
    if isinstance(error, OfflineModeIsEnabled):
        return WeightError(
            "it is not in the cache, and HF_HUB_OFFLINE forbids to ask the hub", where, "unset HF_HUB_OFFLINE"
        )
    if isinstance(error, GatedRepoError):
        return WeightError(
            "gated: the hub gives it only to those who accepted its licence",
            where,
            f"accept it on {page}, then log in: {_LOGIN}",
        )
    if isinstance(error, RepositoryNotFoundError):
        return WeightError(
            "there is no such file or folder here, and the hub knows no such model (or hides a private one)",
            where,
            f"for a path: check its spelling; for a hub id: look at {page}; for a private model: {_LOGIN}",
        )
    if isinstance(error, RevisionNotFoundError):
        return WeightError(
            f"it has no revision {name.revision!r}", where, f"look at the branches and tags on {page}/tree/main"
        )
    if isinstance(error, HfHubHTTPError):
        return _refusal(where, _status(error), _first_line(error))
    if isinstance(error, HTTPError):
        return WeightError(
            f"the hub at {constants.ENDPOINT} cannot be reached ({type(error).__name__}: {_first_line(error)})",
            where,
            "check the network and HF_ENDPOINT; a download goes on where it stopped, file by file",
        )
    return _local(where, error)


def _refusal(where: str, status: int, text: str) -> WeightError:
    if status in (401, 403):
        return WeightError(f"the hub refuses it ({status}): {text}", where, f"log in: {_LOGIN}")
    if status == _BUSY:
        return WeightError("the hub answers that there were too many requests (429)", where, "wait a few minutes")
    if status >= _SERVER:
        return WeightError(f"the hub fails ({status}): {text}", where, "try again later")
    return WeightError(f"the hub does not give it ({status}): {text}", where, "check the name")


def _local(where: str, error: BaseException) -> KtitanError:
    if isinstance(error, OSError) and error.errno is not None:
        cache = error.filename or constants.HF_HUB_CACHE
        what = "the drive is full" if error.errno in _FULL else f"cannot be written: {error.strerror}"
        return IoError(f"{what} while {where} is downloaded", str(cache), "free some space, or set HF_HOME elsewhere")
    return WeightError(
        f"what {constants.ENDPOINT} sends is not usable: {type(error).__name__}: {_first_line(error)}",
        where,
        "check HF_ENDPOINT and the network, and try again",
    )


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
