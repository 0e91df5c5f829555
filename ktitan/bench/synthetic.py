"""GGUF models of real sizes and meaningless numbers, for measurements of speed; `ktitan bench make` writes them.

Random bytes are valid blocks of Q8_0 and Q4_K; their scales are set so that activations stay near 1. The vocabulary is
the 256 bytes and as many pairs of them as are asked for.

Layouts of blocks: https://github.com/ggml-org/llama.cpp, ggml/src/ggml-common.h, `block_q8_0` and `block_q4_K`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ktitan.errors import UnsupportedError

__all__ = ["Shape", "write_model"]

# Standard deviation of the weights that make activations near 1 from activations near 1 at 2,048 columns.
_SPREAD = 0.03
# Of attention's and the experts' output where routing shall be uniform: what layers add is then small beside the
# token's own embedding, so that a random router sees as many directions as there are tokens.
_FAINT = 3e-4
# Block bytes, and the standard deviation of a block of random bytes whose scale is 1 (found by dequantising some).
_BLOCKS = {"q8_0": (32, 34, 73.9), "q4_k": (256, 144, 259.0)}
# 6-bit scales times 4-bit numbers average 7.5 times the 6-bit mins: with this the mean is 0.
_CENTRE = 7.5


@dataclass(frozen=True)
class Shape:
    """Sizes of a model: Qwen3-MoE shaped with `experts`, else Llama shaped.

    Attributes:
        layers, hidden, heads, kv_heads, head_dim: as in configs.
        experts: 0 for a dense model.
        chosen: experts a token.
        intermediate: of an expert, or of the dense layers.
        vocabulary: from 257 to 65,792.
        format: "q4_k" or "q8_0"; columns must be multiples of 256 or 32.
        uniform: let routing be near uniform over random tokens.
    """

    layers: int = 12
    hidden: int = 2048
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 128
    experts: int = 128
    chosen: int = 8
    intermediate: int = 768
    vocabulary: int = 49152
    format: str = "q4_k"
    uniform: bool = False


def write_model(path: Path, shape: Shape, seed: int = 0) -> None:
    """Write a model of `shape` at `path`; it appears there once it is whole. Memory: one tensor.

    Raises:
        UnsupportedError: a size is not possible.
        OSError: it cannot be written.
    """
    import gguf

    _check(shape)
    part = path.with_name(f".{path.name}.part")
    writer = gguf.GGUFWriter(str(part), "qwen3moe" if shape.experts else "llama")
    try:
        _add_sizes(writer, shape)
        _add_vocabulary(writer, shape.vocabulary)
        tensors = list(_tensors(shape))
        for name, sizes, spread in tensors:
            _announce(writer, name, sizes, None if spread is None else shape.format)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        rng = np.random.default_rng(seed)
        for name, sizes, spread in tensors:
            writer.write_tensor_data(_numbers(name, sizes, spread, shape.format, rng))
        writer.close()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _check(shape: Shape) -> None:
    block = _BLOCKS.get(shape.format, (0, 0, 0.0))[0]
    if not block:
        raise UnsupportedError(f"no blocks of {shape.format!r} are made", "format", f"known: {', '.join(_BLOCKS)}")
    columns = {shape.hidden, shape.intermediate, shape.heads * shape.head_dim}
    uneven = sorted(size for size in columns if size % block)
    if uneven:
        raise UnsupportedError(f"{uneven} are no multiples of {block}", shape.format, "choose other sizes")
    if not 257 <= shape.vocabulary <= 256 + 256 * 256:
        raise UnsupportedError(f"{shape.vocabulary} tokens", "vocabulary", "choose 257 to 65792")


def _add_sizes(writer: Any, shape: Shape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate * max(shape.chosen, 1) if shape.experts else shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(shape.vocabulary)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.chosen)
        writer.add_expert_feed_forward_length(shape.intermediate)


def _add_vocabulary(writer: Any, size: int) -> None:
    """Byte-level BPE of pairs: the 256 characters that stand for bytes, then the joins of two, then an end mark."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    pairs = [(a, b) for a in letters for b in letters][: size - 257]
    tokens = [*letters, *(a + b for a, b in pairs), "<|endoftext|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (size - 1) + [3])
    writer.add_token_merges([f"{a} {b}" for a, b in pairs] or [f"{letters[0]} {letters[1]}"])
    writer.add_eos_token_id(size - 1)
    writer.add_bos_token_id(size - 1)
    writer.add_add_bos_token(False)


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...], float | None]]:
    """Names, sizes in numbers and standard deviations; None: plain floats (norms are ones, routers random)."""
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    output = _FAINT if shape.uniform else _SPREAD
    yield "token_embd.weight", (shape.vocabulary, shape.hidden), 1.0
    yield "output.weight", (shape.vocabulary, shape.hidden), _SPREAD
    yield "output_norm.weight", (shape.hidden,), None
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        yield f"{block}attn_norm.weight", (shape.hidden,), None
        yield f"{block}ffn_norm.weight", (shape.hidden,), None
        yield f"{block}attn_q.weight", (width, shape.hidden), _SPREAD
        yield f"{block}attn_k.weight", (kv_width, shape.hidden), _SPREAD
        yield f"{block}attn_v.weight", (kv_width, shape.hidden), _SPREAD
        yield f"{block}attn_output.weight", (shape.hidden, width), output
        stack: tuple[int, ...] = (shape.experts,) if shape.experts else ()
        suffix = "_exps" if shape.experts else ""
        if shape.experts:
            yield f"{block}attn_q_norm.weight", (shape.head_dim,), None
            yield f"{block}attn_k_norm.weight", (shape.head_dim,), None
            yield f"{block}ffn_gate_inp.weight", (shape.experts, shape.hidden), None
        yield f"{block}ffn_gate{suffix}.weight", (*stack, shape.intermediate, shape.hidden), _SPREAD
        yield f"{block}ffn_up{suffix}.weight", (*stack, shape.intermediate, shape.hidden), _SPREAD
        yield f"{block}ffn_down{suffix}.weight", (*stack, shape.hidden, shape.intermediate), output


def _announce(writer: Any, name: str, sizes: tuple[int, ...], kind: str | None) -> None:
    import gguf

    if kind is None:
        writer.add_tensor_info(name, sizes, np.dtype(np.float32), 4 * int(np.prod(sizes)))
        return
    elements, block_bytes, _ = _BLOCKS[kind]
    stored = (*sizes[:-1], sizes[-1] // elements * block_bytes)
    quantised = gguf.GGMLQuantizationType[kind.upper()]
    writer.add_tensor_info(name, stored, np.dtype(np.uint8), int(np.prod(stored)), raw_dtype=quantised)


def _numbers(
    name: str, sizes: tuple[int, ...], spread: float | None, kind: str, rng: np.random.Generator
) -> np.ndarray:
    if spread is not None:
        elements = _BLOCKS[kind][0]
        return _blocks(int(np.prod(sizes)) // elements, kind, spread, rng).reshape(*sizes[:-1], -1)
    if name.endswith("ffn_gate_inp.weight"):
        return rng.normal(0, _SPREAD, sizes).astype(np.float32)
    return np.ones(sizes, np.float32)


def _blocks(count: int, kind: str, spread: float, rng: np.random.Generator) -> np.ndarray:
    """uint8 [count, block bytes] of random numbers whose standard deviation is `spread`."""
    _, block_bytes, unit = _BLOCKS[kind]
    blocks = np.frombuffer(bytearray(rng.bytes(count * block_bytes)), np.uint8).reshape(count, block_bytes)
    scale = np.float16(spread / unit)
    blocks[:, 0:2] = np.frombuffer(scale.tobytes(), np.uint8)
    if kind == "q4_k":
        blocks[:, 2:4] = np.frombuffer(np.float16(_CENTRE * float(scale)).tobytes(), np.uint8)
    return blocks
