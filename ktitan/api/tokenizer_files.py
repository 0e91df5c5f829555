"""A folder's tokenizer through transformers, without running code of the folder, and held against the embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ktitan.api.config_file import own_code_message
from ktitan.errors import Fault, FormatError, UnsupportedError, WeightError
from ktitan.weights.files import is_file
from ktitan.weights.foreign import first_line, refused
from ktitan.weights.json_files import read_json

__all__ = ["AS_IT_IS", "SETTINGS", "check_vocabulary", "load_tokenizer"]

SETTINGS = "tokenizer_config.json"
TOKENIZER = "tokenizer.json"
# A key that `ktitan convert` writes where the tokenizer is out of a GGUF: tokenizer.json says all. AutoTokenizer would
# take the class of the model's family, which for some (qwen2) puts a splitting of its own in place of the file's.
AS_IT_IS = "ktitan_as_it_is"
# Files of a tokenizer that are JSON objects; the others are read by the tokenizer's class alone.
JSON_FILES = (SETTINGS, TOKENIZER, "special_tokens_map.json", "added_tokens.json")
ONE_CHECKPOINT = "tokenizer and weights are of different checkpoints: take both from one"
MODEL_FILES = (TOKENIZER, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


def load_tokenizer(home: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in the folder `home`.

    Raises:
        WeightError: there is none.
        FormatError: files are broken; all that are no JSON objects at once.
        UnsupportedError: it exists only as code of the folder, which is never run.
        IoError: a file cannot be read.
    """
    settings = read_json(home / SETTINGS) if is_file(home / SETTINGS) else {}
    template = settings.get("chat_template")
    if template is not None and not isinstance(template, str | list | dict):
        kind = type(template).__name__
        raise FormatError(f"chat_template is {kind}, not text", str(home / SETTINGS), "download the file again")
    try:
        with refused(FormatError, "the tokenizer cannot be used", home, "download the tokenizer's files again"):
            loader: Any = PreTrainedTokenizerFast if settings.get(AS_IT_IS) is True else AutoTokenizer
            tokenizer: Any = loader.from_pretrained(home, trust_remote_code=False, local_files_only=True)
            # Much of what the files say is looked at when it is used: lengths, and the token for what is unknown.
            tokenizer.decode(tokenizer("a \U0010fffd")["input_ids"])
    except FormatError as error:
        raise _diagnosed(home, settings, error) from error
    return tokenizer


def _diagnosed(
    home: Path, settings: dict[str, Any], error: FormatError
) -> FormatError | UnsupportedError | WeightError:
    """The error that says best why there is no tokenizer; looked for only when there is none."""
    faults: list[Fault] = []
    for name in JSON_FILES:
        if is_file(home / name):
            try:
                read_json(home / name)
            except FormatError as broken:
                faults += broken.faults
    if faults:
        return FormatError.from_faults(faults, f"{len(faults)} of the tokenizer's files are broken")
    own = own_code_message(settings)
    if own:
        return UnsupportedError(
            f"the tokenizer needs code of the folder: {own}",
            str(home / SETTINGS),
            "copy the tokenizer.json of the same model beside it; ktitan has no option to run a model's own code",
        )
    if not any(is_file(home / name) for name in MODEL_FILES):
        return WeightError(
            f"no tokenizer here (looked for {', '.join(MODEL_FILES)})",
            str(home),
            "copy tokenizer.json and tokenizer_config.json of the model beside config.json",
        )
    cause = error.__cause__
    reason = first_line(cause) if cause is not None else error.message
    place = home / TOKENIZER if is_file(home / TOKENIZER) else home
    return FormatError(f"the tokenizer cannot be used: {reason}", str(place), error.remedy)


def check_vocabulary(tokenizer: Any, model: Any, where: object) -> tuple[list[Fault], list[str]]:
    """Hold the tokenizer's ids against the rows of the model's embedding.

    Returns:
        Faults (the vocabulary itself has ids that the embedding lacks) and notes for the plan: tokens added to the
        vocabulary may lie beyond the embedding in lawful checkpoints (the image token of Gemma 3's text models); they
        are refused only when a prompt holds one.
    """
    rows = getattr(model.config.get_text_config(decoder=True), "vocab_size", None)
    if not isinstance(rows, int):
        return [], []
    beyond = {index: token for token, index in tokenizer.get_vocab().items() if index >= rows}
    own = sorted(beyond.keys() - set(getattr(tokenizer, "added_tokens_decoder", None) or ()))
    if own:
        first = f"the first is {beyond[own[0]]!r} (id {own[0]})"
        message = f"{len(own)} tokens lie beyond the embedding's {rows} rows, {first}"
        return [
            Fault(message, str(where), "tokenizer and weights are of different checkpoints: take both from one")
        ], []
    if not beyond:
        return [], []
    first = f"the first is {beyond[min(beyond)]!r} (id {min(beyond)})"
    return [], [
        f"{len(beyond)} added tokens lie beyond the embedding's {rows} rows, {first}; a prompt with one is refused"
    ]
