"""The public ways in for files of strangers, and what must be true of a file that they accept."""

import os

import torch

import ktitan
from ktitan.errors import KtitanError
from ktitan.formats import find_format
from ktitan.weights.gguf_config import config_from_gguf, generation_config_from_gguf
from ktitan.weights.gguf_tokenizer import tokenizer_from_gguf
from ktitan.weights.opening import open_source

READ_BYTES = 1 << 16


class Insane(Exception):
    """A file was accepted, or an error made, that should not be like this."""


def require(condition, what):
    if not condition:
        raise Insane(what)


def readable(error):
    """What every error and fault must be: sayable in a terminal, short enough for one, with a remedy."""
    for fault in error.faults if isinstance(error, KtitanError) else [error]:
        require(fault.message and fault.remedy, f"no message or remedy: {fault!r}")
        require(len(str(fault)) < 10_000, f"{len(str(fault))} characters of {str(fault)[:200]!r}")
        str(fault).encode("utf-8")
    # torch says it with a RuntimeError, which looks like any other refusal.
    require("allocate" not in str(getattr(error, "__cause__", "")), f"memory was asked for: {error!r}")


def source(path):
    """Open a source and check every tensor that it lists; reads a few small ones."""
    opened = open_source(path)
    try:
        for info in opened.tensors.values():
            require(info.offset >= 0 and min(info.shape, default=0) >= 0, info)
            require(info.nbytes == find_format(info.format, info.name).tensor_bytes(info.shape), info)
            require(info.offset + info.nbytes <= os.path.getsize(info.file), info)
        small = [one for one in opened.tensors.values() if 0 < one.nbytes < READ_BYTES]
        for info in small[:2]:
            opened.read_into(info.name, torch.empty(info.shape, dtype=torch.float32))
    except BaseException:
        opened.close()
        raise
    return opened


def gguf(path):
    """Source, config, generation config and tokenizer; the last is tried when the config was refused, too."""
    opened = source(path)
    try:
        refused = None
        try:
            config = config_from_gguf(opened)
            generation_config_from_gguf(opened, config)
        except KtitanError as error:
            readable(error)
            refused = error
        tokenizer = tokenizer_from_gguf(opened)
        text = "ab <s> é"
        require(isinstance(tokenizer.decode(tokenizer(text)["input_ids"]), str), "no text")
        if refused is not None:
            raise refused
    finally:
        opened.close()


def plan(path, rules="auto"):
    """From a path to a plan that has been checked."""
    made = ktitan.plan_model(path, rules, device="cpu")
    made.summary()
    made.check()
