"""Mutated GGUF files: whole tiny models of every family, as data, changed, then written with lies about sizes."""

import struct
from dataclasses import dataclass, field

import torch
from fuzz import doors
from fuzz.mutate import BOUNDARIES, FLOATS, TEXTS, hostile_text, mutate_bytes
from transformers import AutoModelForCausalLM

from support.gguf_files import describe, gguf_tensors
from support.tiny_models import CONFIGS, VOCABULARY

U32, I32, F32, BOOL, TEXT, ARRAY = 4, 5, 6, 7, 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
SPECIAL = ["<pad>", "<s>", "</s>"]
TEMPLATE = "{% for message in messages %}<s>{{ message.content }}</s>{% endfor %}"


@dataclass
class Content:
    """A GGUF file before it is bytes: pairs of (key, kind, value) and tensors of [name, dims, kind, offset]."""

    pairs: list
    tensors: list
    data_bytes: int
    version: int = 3
    counts: list = field(default_factory=lambda: [None, None])

    def copy(self):
        return Content(
            list(self.pairs), [list(one) for one in self.tensors], self.data_bytes, self.version, [None, None]
        )


class Writer:
    """Bytes, and the places of the numbers in them."""

    def __init__(self):
        self.out, self.fields = bytearray(), []

    def number(self, code, value):
        raw = struct.pack(f"<{code}", value)
        self.fields.append((len(self.out), len(raw)))
        self.out += raw

    def text(self, value):
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        self.number("Q", len(raw))
        self.out += raw

    def value(self, kind, value):
        if kind == TEXT:
            self.text(value)
        elif kind == ARRAY:
            item, values = value
            self.number("I", item)
            self.number("Q", len(values))
            for one in values:
                self.text(one) if item == TEXT else self.out.extend(packed(item, one))
        elif kind in SCALARS:
            self.fields.append((len(self.out), struct.calcsize(SCALARS[kind])))
            self.out += packed(kind, value)


def packed(kind, value):
    """A value as a scalar of `kind`, whatever it was."""
    code = SCALARS.get(kind, "B")
    number = value if isinstance(value, int | float) else len(value) if value is not None else 0
    if code in "fd":
        try:
            return struct.pack(f"<{code}", float(number))
        except OverflowError:
            return struct.pack(f"<{code}", float("inf"))
    if code == "?":
        return struct.pack("<?", bool(number))
    whole = int(number) if number == number and abs(number) != float("inf") else 0
    return (whole % (1 << 8 * struct.calcsize(code))).to_bytes(struct.calcsize(code), "little")


def serialise(content):
    """(bytes of the header, fields, bytes of the whole file)."""
    writer = Writer()
    writer.out += b"GGUF"
    writer.number("I", content.version)
    writer.number("Q", len(content.tensors) if content.counts[0] is None else content.counts[0])
    writer.number("Q", len(content.pairs) if content.counts[1] is None else content.counts[1])
    for key, kind, value in content.pairs:
        writer.text(key)
        writer.number("I", kind)
        writer.value(kind, value)
    for name, dims, kind, offset in content.tensors:
        writer.text(name)
        writer.number("I", len(dims))
        for size in dims:
            writer.number("Q", size)
        writer.number("I", kind)
        writer.number("Q", offset)
    header = bytes(writer.out) + b"\0" * (-len(writer.out) % 32)
    return header, writer.fields, len(header) + content.data_bytes


# -- seeds -------------------------------------------------------------------------------------------------------------


def seeds():
    """A file of every family that GGUF files can describe, with each kind of tokenizer."""
    made = []
    for number, family in enumerate(name for name in CONFIGS if name not in ("mistral", "olmoe", "gpt_oss")):
        config = CONFIGS[family]()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            tensors = {name: tuple(tensor.shape) for name, tensor in gguf_tensors(model).items()}
        architecture, metadata = describe(config)
        if family == "llama":
            tensors["rope_freqs.weight"] = (config.head_dim // 2,)
        metadata = {"general.architecture": architecture, **metadata, **tokenizer(number % 2 == 0)}
        made.append(content_of(architecture, metadata, tensors))
    return made


def tokenizer(byte_level):
    tokens = [*SPECIAL, *(chr(33 + index) for index in range(90)), "ab", "abc"]
    tokens += [f"<{index}>" for index in range(VOCABULARY - len(tokens))]
    shared = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (VOCABULARY - 3),
        "tokenizer.chat_template": TEMPLATE,
        "tokenizer.ggml.add_bos_token": True,
    }
    if byte_level:
        merges = ["a b", "ab c"]
        return {
            **shared,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "llama-bpe",
            "tokenizer.ggml.merges": merges,
        }
    return {**shared, "tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [-float(i) for i in range(VOCABULARY)]}


def content_of(architecture, metadata, tensors):
    pairs = []
    for key, value in metadata.items():
        if value is None:
            continue
        full = key if key.startswith(("general.", "tokenizer.")) else f"{architecture}.{key}"
        pairs.append((full, *typed(value)))
    entries, place = [], 0
    for name, shape in tensors.items():
        entries.append([name, tuple(reversed(shape)), 0, place])
        size = 4
        for length in shape:
            size *= length
        place += -(-size // 32) * 32
    return Content(pairs, entries, place)


def typed(value):
    """(kind, value) as llama.cpp's converter would write it."""
    if isinstance(value, list):
        item = {str: TEXT, float: F32, bool: BOOL}.get(type(value[0]), I32)
        return ARRAY, (item, value)
    return {bool: BOOL, int: U32, float: F32, str: TEXT}[type(value)], value


# -- mutations ---------------------------------------------------------------------------------------------------------


def mutate_content(rng, content, others):
    made = content.copy()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(CHANGES)(rng, made, others)
    return made


def _any_pair(rng, made):
    return rng.randrange(len(made.pairs)) if made.pairs else None


def _change_value(rng, made, others):
    index = _any_pair(rng, made)
    if index is None:
        return
    key, kind, value = made.pairs[index]
    made.pairs[index] = (key, *another(rng, kind, value))


def another(rng, kind, value):
    """(kind, value): at the edge of the kind, or of another kind."""
    if rng.random() < 0.25:
        return rng.choice(
            (*((code, rng.choice((value, 0, 1))) for code in SCALARS), (TEXT, "text"), (ARRAY, (I32, [])))
        )
    if kind == TEXT:
        return TEXT, hostile_text(rng, value if isinstance(value, str) else "")
    if kind == ARRAY:
        return ARRAY, changed_array(rng, *value)
    if kind in (6, 12):
        return kind, rng.choice(FLOATS)
    return kind, rng.choice(BOUNDARIES)


def changed_array(rng, item, values):
    values = list(values)
    action = rng.randrange(6)
    if action == 0:
        values = values[: rng.randrange(len(values) + 1)]
    elif action == 1:
        values += values[: rng.choice((1, 3, len(values)))]
    elif action == 2 and values:
        values[rng.randrange(len(values))] = rng.choice(TEXTS) if item == TEXT else rng.choice((*FLOATS, *BOUNDARIES))
    elif action == 3:
        return rng.choice((*SCALARS, TEXT, ARRAY, 99)), [""] * len(values)
    elif action == 4 and values:
        first, second = rng.randrange(len(values)), rng.randrange(len(values))
        values[first] = values[second]
    elif action == 5 and item == TEXT and values:
        place = rng.randrange(len(values))
        values[place] = hostile_text(rng, values[place] if isinstance(values[place], str) else "")
    return item, values


def _swap_keys(rng, made, others):
    if len(made.pairs) > 1:
        first, second = rng.sample(range(len(made.pairs)), 2)
        (a, *left), (b, *right) = made.pairs[first], made.pairs[second]
        made.pairs[first], made.pairs[second] = (b, *left), (a, *right)


def _drop_or_double(rng, made, others):
    rows = rng.choice((made.pairs, made.tensors))
    if rows:
        index = rng.randrange(len(rows))
        rows.insert(index, rows[index]) if rng.random() < 0.3 else rows.pop(index)


KEYS = (
    "general.alignment", "split.count", "split.no", "split.tensors.count", "llama.rope.scaling.factor",
    "llama.rope.scaling.type", "llama.vocab_size", "llama.nextn_predict_layers", "gemma3.nextn_predict_layers",
    "deepseek2.rope.scaling.type", "deepseek2.rope.scaling.factor", "deepseek2.rope.scaling.original_context_length",
    "deepseek2.rope.scaling.yarn_log_multiplier", "deepseek2.expert_gating_func", "gemma3.attention.sliding_window",
    "gemma3.attention.sliding_window_pattern", "tokenizer.ggml.unknown_token_id", "tokenizer.chat_template.tool",
    "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.add_eos_token", "llama.rope.scaling.original_context_length",
    "qwen3.final_logit_softcapping", "gemma3.final_logit_softcapping", "deepseek2.attention.temperature_scale",
    "tokenizer.ggml.eot_token_id", "llama.rope.scaling.attn_factor", "deepseek2.rope.scaling.yarn_beta_fast",
)  # fmt: skip


def _foreign_pair(rng, made, others):
    """A key of another file, or one that the seeds lack."""
    if rng.random() < 0.5:
        made.pairs.append(rng.choice(rng.choice(others).pairs))
        return
    kind = rng.choice((U32, I32, F32, TEXT, 10, 11, 12, BOOL, ARRAY))
    old = {TEXT: rng.choice(("yarn", "linear", "")), ARRAY: (rng.choice((I32, BOOL, TEXT)), ["a", "b"])}.get(kind, 1)
    if kind == ARRAY and old[0] != TEXT:
        old = (old[0], [1, 0, 1])
    made.pairs.append((rng.choice(KEYS), *(another(rng, kind, old) if rng.random() < 0.6 else (kind, old))))


def _change_tensor(rng, made, others):
    if not made.tensors:
        return
    one = rng.choice(made.tensors)
    action = rng.randrange(5)
    if action == 0:
        one[0] = hostile_text(rng, one[0]) if rng.random() < 0.5 else rng.choice(rng.choice(others).tensors)[0]
    elif action == 1:
        dims = list(one[1])
        dims[rng.randrange(len(dims)) if dims else 0 :][:1] = []
        one[1] = tuple(dims) if rng.random() < 0.3 else tuple(rng.choice(BOUNDARIES) % 2**64 for _ in one[1])
    elif action == 2 and one[1]:
        dims = list(one[1])
        dims[rng.randrange(len(dims))] = rng.choice((*BOUNDARIES, 32, 64, 256)) % 2**64
        one[1] = tuple(dims)
    elif action == 3:
        one[2] = rng.choice((*range(45), 2**31, 2**32 - 1))
    else:
        one[3] = rng.choice((*BOUNDARIES, one[3] + 32, one[3] - 32)) % 2**64


def _swap_shapes(rng, made, others):
    if len(made.tensors) > 1:
        first, second = rng.sample(made.tensors, 2)
        first[1], second[1] = second[1], first[1]


def _lie(rng, made, others):
    made.counts[rng.randrange(2)] = rng.choice(BOUNDARIES) % 2**64


def _data(rng, made, others):
    made.data_bytes = max(0, rng.choice((0, 1, made.data_bytes - 1, made.data_bytes // 2, made.data_bytes + 64)))


CHANGES = (
    *[_change_value] * 6, *[_foreign_pair] * 3, *[_change_tensor] * 4, _swap_keys, _drop_or_double, _drop_or_double,
    _swap_shapes, _lie, _data,
)  # fmt: skip


def write(folder, header, size, name="m.gguf"):
    """A file whose data is a hole of zeros."""
    path = folder / name
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(max(size, len(header)) if size < 1 << 40 else len(header))
    return path


def bytes_case(rng, stock, folder):
    """Bytes of the header changed, at the places of numbers above all."""
    content = rng.choice(stock)
    short = rng.random() < 0.7
    if short:  # more of the changes hit what matters; too little for a config
        content = content.copy()
        content.pairs, content.tensors = content.pairs[:4], content.tensors[:3]
    header, fields, size = serialise(content)
    changed = mutate_bytes(rng, header, fields, serialise(rng.choice(stock))[0])
    path = write(folder, changed, size - len(header) + len(changed))
    doors.source(path).close() if short else doors.gguf(path)


def content_case(rng, stock, folder):
    """A well-formed file that says something else."""
    header, _, size = serialise(mutate_content(rng, rng.choice(stock), stock))
    doors.gguf(write(folder, header, size))


def plan_case(rng, stock, folder):
    """The same, all the way to a checked plan."""
    header, _, size = serialise(mutate_content(rng, rng.choice(stock), stock))
    doors.plan(write(folder, header, size))


def shards_case(rng, stock, folder):
    """A model in two or three files, some of which lie."""
    content, count = rng.choice(stock), rng.choice((2, 3))
    for number in range(count):
        part = content.copy()
        part.tensors = part.tensors[number::count]
        part.pairs = [
            *(part.pairs if number == 0 else part.pairs[:1]),
            ("split.count", 2, count),
            ("split.no", 2, number),
        ]
        if rng.random() < 0.5:
            part = mutate_content(rng, part, stock)
        header, _, size = serialise(part)
        name = f"m-{number + rng.choice((1, 1, 1, 1, 1, 1, 1, 0)):05d}-of-{count:05d}.gguf"
        first = write(folder, header, size, name)
    doors.gguf(rng.choice((folder, first)))
