"""What lies beside the weights: config, generation config, tokenizer and chat template."""

from __future__ import annotations

import json
import os
from fnmatch import fnmatch
from pathlib import Path

from ktitan.api.build import build_tokenizer, generation_config_of, read_config
from ktitan.api.planning import Prepared
from ktitan.api.tokenizer_files import AS_IT_IS, SETTINGS
from ktitan.convert.writer import replace_file, sync_folder, written
from ktitan.errors import FormatError
from ktitan.weights.files import names_in, open_regular
from ktitan.weights.foreign import refused
from ktitan.weights.json_files import read_json

__all__ = ["write_beside"]

# Never code, and never weights; the licence goes where the model goes.
COPIED = (
    *("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*"),
    *("merges.txt", "*.model", "*.tiktoken", "tekken.json", "chat_template*", "*.jinja", "LICENSE*", "NOTICE*"),
)
NEVER = ("*.py", "*.safetensors", "*.bin", "*.gguf")
TEMPLATES = "additional_chat_templates"


def write_beside(ready: Prepared, destination: Path) -> None:
    """Copy the files of the source's folder, or make them from a GGUF's metadata.

    Raises:
        IoError: a file cannot be read or written.
        FormatError, UnsupportedError, WeightError: a GGUF's metadata makes no config or tokenizer.
    """
    if ready.files.home is not None:
        _copy(ready.files.home, destination)
        if (ready.files.home / TEMPLATES).is_dir():
            with written(destination / TEMPLATES):
                (destination / TEMPLATES).mkdir(exist_ok=True)
            _copy(ready.files.home / TEMPLATES, destination / TEMPLATES)
        return
    _make(ready, destination)


def _copy(home: Path, destination: Path) -> None:
    for name in names_in(home, ""):
        if any(fnmatch(name, one) for one in COPIED) and not any(fnmatch(name, one) for one in NEVER):
            with open_regular(home / name) as file:
                replace_file(destination / name, file.read())


def _make(ready: Prepared, destination: Path) -> None:
    config = read_config(ready.files, ready.sources)  # that of the model has the dtype of this machine
    tokenizer = build_tokenizer(ready.files, ready.sources)
    generation = generation_config_of(ready.model, None, ready.sources)
    with refused(FormatError, "config or tokenizer cannot be saved", destination, "convert the HuggingFace folder"):
        config.save_pretrained(destination)
        tokenizer.save_pretrained(destination)
        if generation is not None:
            generation.save_pretrained(destination)
    settings = {**read_json(destination / SETTINGS), AS_IT_IS: True}
    replace_file(destination / SETTINGS, json.dumps(settings, indent=2, ensure_ascii=False).encode())
    for name in (name for name in os.listdir(destination) if name.endswith((".json", ".jinja"))):
        with written(destination / name), (destination / name).open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(destination)
