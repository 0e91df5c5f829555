"""Mutated safetensors headers, shard indexes, config.json and tokenizer.json."""

import json
import struct

import torch
from fuzz import doors
from fuzz.mutate import TEXTS, deep, mutate_bytes, mutate_value
from transformers import AutoModelForCausalLM

from ktitan.api.build import build_tokenizer, generation_config_of, read_config
from ktitan.api.locate import locate

from support.tiny_models import CONFIGS
from support.tiny_tokenizer import tiny_tokenizer

BITS = (
    *(("BOOL", 8), ("U8", 8), ("I8", 8), ("F8_E5M2", 8), ("F8_E4M3", 8), ("F8_E8M0", 8), ("I16", 16), ("U16", 16)),
    *(
        ("F16", 16),
        ("BF16", 16),
        ("I32", 32),
        ("U32", 32),
        ("F32", 32),
        ("F64", 64),
        ("I64", 64),
        ("U64", 64),
        ("C64", 64),
    ),
    *(("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6), ("F8_E4M3FNUZ", 8)),
)
INDEX = "model.safetensors.index.json"


def entries(tensors, start=0):
    """A header's table for {name: (dtype, shape)}, and the bytes of the data."""
    table = {}
    for name, (dtype, shape) in tensors.items():
        size = 4 if dtype == "F32" else 2
        for length in shape:
            size *= length
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, start + size]}
        start += size
    return table, start


def raw(header, data_bytes, path, length=None):
    """A file whose data is a hole of zeros."""
    text = header if isinstance(header, bytes) else dump(header)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text) if length is None else length % 2**64) + text)
        file.truncate(8 + len(text) + data_bytes)
    return path


def dump(value):
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


# -- seeds -------------------------------------------------------------------------------------------------------------


def header_seeds():
    small, size = entries({"a": ("F32", [4, 8]), "b": ("BF16", [3]), "c": ("F32", []), "d": ("F32", [0, 8])})
    return [
        ({**small, "__metadata__": {"format": "pt"}}, size),
        entries({f"t{i}": ("F32", [2]) for i in range(40)}),
        ({}, 0),
    ]


def model_seeds():
    """(config as a dict, header, data bytes) of every tiny family."""
    made = []
    for make in CONFIGS.values():
        config = make()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        names = [name for name in model.state_dict() if not (config.tie_word_embeddings and name == "lm_head.weight")]
        stored = {name: ("F32", list(model.state_dict()[name].shape)) for name in names}
        made.append(({**config.to_dict(), "architectures": [type(model).__name__]}, *entries(stored)))
    return made


def tokenizer_seed():
    """{file: text} of a saved tokenizer and of a generation config."""
    made = tiny_tokenizer()
    made.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return {
        "tokenizer.json": json.loads(made.backend_tokenizer.to_str()),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 256, **special},
        "generation_config.json": {"eos_token_id": [2, 3], "bos_token_id": 1, "temperature": 0.7, "do_sample": True},
    }


# -- cases -------------------------------------------------------------------------------------------------------------


def header_case(rng, stock, folder):
    """One safetensors file."""
    header, size = rng.choice(stock)
    path, action = folder / "model.safetensors", rng.random()
    if action < 0.1:
        raw(*legal(rng), path)
    elif action < 0.55:
        raw(mutate_value(rng, header), size, path)
    elif action < 0.9:
        text = dump(header)
        length = len(text).to_bytes(8, "little")
        path.write_bytes(mutate_bytes(rng, length + text, [(0, 8)], dump(stock[0][0])) + b"\0" * size)
    elif action < 0.95:
        raw(deep(b'{"a":', b"1", b"}", rng.choice((5, 200, 5000))), 0, path)
    else:
        raw(header, size, path, rng.choice((0, 1, 2**31, 2**62, 2**63, 2**64 - 1)))
    doors.source(rng.choice((path, folder))).close()


def legal(rng):
    """(header, data bytes) that the format allows: any dtype, odd shapes, keys in any order, all kinds of names."""
    table, start = {}, 0
    for _ in range(rng.randrange(12)):
        dtype, bits = rng.choice(BITS)
        shape = [rng.choice((0, 1, 2, 3, 8, 64)) for _ in range(rng.randrange(5))]
        size = bits
        for length in shape:
            size *= length
        if size % 8 == 0:
            name = rng.choice((f"t{rng.randrange(99)}", rng.choice(TEXTS)))
            if name in table:
                continue
            table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size // 8]}
            start += size // 8
    names = rng.sample(list(table), len(table))
    return {name: table[name] for name in names}, start


def index_case(rng, stock, folder):
    """An index and the shards that it names; both may be changed."""
    header, size = stock[0]
    names = {name: f"s-{number % 2}.safetensors" for number, name in enumerate(header) if name != "__metadata__"}
    for shard in ("s-0.safetensors", "s-1.safetensors"):
        part, bytes_ = entries({n: (header[n]["dtype"], header[n]["shape"]) for n in names if names[n] == shard})
        raw(mutate_value(rng, part) if rng.random() < 0.1 else part, bytes_, folder / shard)
    index = {"metadata": {"total_size": size}, "weight_map": names}
    action = rng.random()
    if action < 0.6:
        text = dump(mutate_value(rng, index))
    elif action < 0.65:
        text = rng.choice((deep(b"[", b"", b"]", 100_000), deep(b'{"weight_map":', b"{}", b"}", 100_000)))
    elif action < 0.75:
        odd = rng.choice(
            ("../m", "/etc/passwd", "a\0b", "\ud800", "x" * 5000, "s-0.safetensors/", ".", "s-0.safetensors\n")
        )
        text = json.dumps({"weight_map": {**names, "a": odd}}).encode()
    else:
        text = mutate_bytes(rng, dump(index), (), dump(header))
    (folder / INDEX).write_bytes(text)
    doors.source(rng.choice((folder, folder / INDEX))).close()


def _model_folder(rng, stock, folder):
    config, header, size = rng.choice(stock)
    changed = dump(mutate_value(rng, config)) if rng.random() < 0.85 else mutate_bytes(rng, dump(config))
    if rng.random() < 0.01:
        changed = deep(b'{"a":', b"1", b"}", 100_000)
    (folder / "config.json").write_bytes(changed)
    part = mutate_value(rng, header) if rng.random() < 0.05 else header
    raw(part, size, folder / "model.safetensors")
    return folder


def config_case(rng, stock, folder):
    """config.json alone."""
    files = locate(_model_folder(rng, stock, folder))
    if files.home is not None:
        read_config(files, [])


def config_plan_case(rng, stock, folder):
    """config.json and a header, all the way to a checked plan."""
    doors.plan(_model_folder(rng, stock, folder))


def tokenizer_case(rng, stock, folder):
    """tokenizer.json, its config and generation_config.json."""
    changed = rng.choice(list(stock))
    for name, content in stock.items():
        text = dump(content)
        if name == changed:
            text = dump(mutate_value(rng, content)) if rng.random() < 0.8 else mutate_bytes(rng, text, (), dump(stock))
        (folder / name).write_bytes(text)
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama"]().to_dict()))
    files = locate(folder)
    tokenizer = build_tokenizer(files, [])
    tokenizer.decode(tokenizer("ab é")["input_ids"])
    generation_config_of(_FromConfig, folder, [])


class _FromConfig:
    """Stands for a model whose generation config was made from its config."""

    class generation_config:
        _from_model_config = True
