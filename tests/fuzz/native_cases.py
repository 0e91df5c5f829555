"""Mutated Titan Native directories: bytes as they are, and lies in index and headers under checksums that hold."""

import json

from fuzz import doors
from fuzz.mutate import mutate_bytes, mutate_value

from ktitan.weights.native_format import INDEX_NAME, Part, RecordEntry, digest, header_bytes, index_text

PAGE = 4096


def seeds():
    """({file: data bytes with header}, index) of a model with a table, a linear module and three experts."""
    table = [Part(tensor="weight", shape=[32, 16], format="f32", first_row=0, rows=32, at=0)]
    linear = [
        Part(tensor="weight", shape=[6, 32], format="q8_0", first_row=0, rows=4, at=0),
        Part(tensor="weight", shape=[6, 32], format="q4_0", first_row=4, rows=2, at=192),
        Part(tensor="bias", shape=[6], format="bf16", first_row=0, rows=1, at=256),
    ]
    expert = [
        Part(tensor="gate_up_proj", shape=[64, 32], format="f32", first_row=0, rows=64, at=0),
        Part(tensor="down_proj", shape=[32, 32], format="bf16", first_row=0, rows=32, at=8192),
    ]
    names = [f"layers.0.mlp.experts[{number}]" for number in range(3)]
    files = {
        "base.titan.safetensors": _file({"embed": PAGE, "head": PAGE}, [table, linear], {"embed": 0, "head": 1}),
        "layer-00000.titan.safetensors": _file(dict.fromkeys(names, 3 * PAGE), [expert], dict.fromkeys(names, 0)),
    }
    index = {
        **{"format": "titan-native", "version": 1, "layout": "rows", "stripes": 1, "source": "m"},
        **{"source_sha256": "0" * 64, "made_by": {"ktitan": "0"}, "files": []},
    }
    return files, index


def _file(sizes, layouts, numbers):
    records = {name: RecordEntry(layout=numbers[name], start=0, crc32c="00000000") for name in sizes}
    return header_bytes(sizes, layouts, records) + bytes(sum(sizes.values()))


def native_case(rng, stock, folder):
    """One directory; index, headers or bytes are changed."""
    files, index = stock
    action, victim = rng.random(), rng.choice(list(files))
    made = {name: _lied(rng, data) if name == victim and action < 0.6 else data for name, data in files.items()}
    entries = [
        {"name": name, "bytes": len(data), "header_sha256": digest(data[: 8 + int.from_bytes(data[:8], "little")])}
        for name, data in made.items()
    ]
    fields = {**index, "files": entries}
    changed = mutate_value(rng, fields) if 0.6 <= action < 0.85 else fields
    text = index_text(changed if isinstance(changed, dict) else {})
    if action >= 0.85:
        made[victim] = mutate_bytes(rng, made[victim], [(0, 8)])
        text = mutate_bytes(rng, text)
    for name, data in made.items():
        (folder / name).write_bytes(data)
    (folder / INDEX_NAME).write_bytes(text)
    opened = doors.source(folder)
    for expression in opened.bindings().values():
        doors.require(expression.uneven or expression.shape, expression)
    opened.close()


def _lied(rng, data):
    """The file with a header that says something else, in as much room."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header["__metadata__"]
    key = rng.choice(("titan.parts", "titan.records", None))
    if key is None:
        header = mutate_value(rng, header)
    else:
        metadata[key] = json.dumps(mutate_value(rng, json.loads(metadata[key])))
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    room = max(length, -(-(8 + len(text)) // PAGE) * PAGE - 8)
    return room.to_bytes(8, "little") + text.ljust(room) + data[8 + length :]
