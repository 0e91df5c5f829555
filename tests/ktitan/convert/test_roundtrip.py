"""A native model answers with the same bits as what it was made of, and any safetensors reader opens its files."""

import itertools
import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

import ktitan
from ktitan.convert import convert_model
from ktitan.convert.layout import LEAST_STRIPED_BYTES
from ktitan.weights.opening import open_source

from support.good_models import save_gguf
from support.tiny_models import tiny_model

FAMILIES = ("llama", "llama_tied", "mixtral", "qwen3_moe", "deepseek_v3", "gemma3_text")


def same_tokenizers(one, other):
    texts = ["A cache is", "x = 1\n\n  y\t(2)", "naïve 中文 🙂", "<s>a</s>", " leading"]
    assert [one(t)["input_ids"] for t in texts] == [other(t)["input_ids"] for t in texts]
    assert one.get_vocab() == other.get_vocab() and one.chat_template == other.chat_template
    assert (one.bos_token_id, one.eos_token_id, one.pad_token_id) == (
        other.bos_token_id,
        other.eos_token_id,
        other.pad_token_id,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder(families, logits, tmp_path, family):
    made = convert_model(families / family, tmp_path / "native")
    assert made.kept_bytes == 0 and made.records > 4
    assert torch.equal(logits(tmp_path / "native"), logits(families / family))


def test_a_folder_in_bfloat16_and_again_from_native(families, logits, tmp_path):
    model = ktitan.load(families / "mixtral")[0]
    model.ktitan.undo()
    model.to(torch.bfloat16).save_pretrained(tmp_path / "bf16")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bf16" / name).write_bytes((families / "mixtral" / name).read_bytes())
    convert_model(tmp_path / "bf16", tmp_path / "native")
    convert_model(tmp_path / "native", tmp_path / "again")
    expected = logits(tmp_path / "bf16")
    assert expected.dtype == logits(tmp_path / "native").dtype
    assert torch.equal(logits(tmp_path / "native"), expected)
    for file in (tmp_path / "native").glob("*.titan.safetensors"):
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_a_gguf(tiny_gguf, logits, tmp_path):
    convert_model(tiny_gguf, tmp_path / "native")
    model, tokenizer = ktitan.load(tiny_gguf, device="cpu")
    native, native_tokenizer = ktitan.load(tmp_path / "native", device="cpu")
    same_tokenizers(tokenizer, native_tokenizer)
    ids = torch.arange(3, 60).view(1, -1)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, native(ids).logits)
    assert model.generation_config.to_dict() == native.generation_config.to_dict()
    rows = {row.path: (row.operator, row.format, row.kernel) for row in model.ktitan.plan.rows}
    assert {row.path: (row.operator, row.format, row.kernel) for row in native.ktitan.plan.rows} == rows


def test_a_llama_gguf_whose_rows_are_permuted(small, logits, tmp_path):
    convert_model(small[1], tmp_path / "native")
    assert torch.equal(logits(tmp_path / "native"), logits(small[1]))
    same_tokenizers(ktitan.load(small[1])[1], ktitan.load(tmp_path / "native")[1])


def test_a_tokenizer_stays_what_the_gguf_said(tmp_path):
    """transformers would take a Qwen2Tokenizer here, which splits before numbers as its family does."""
    tokens = [*(chr(number) for number in range(33, 33 + 90)), *(f"{n}" for n in range(10, 51))]
    merges = [f"{n // 10} {n % 10}" for n in range(10, 51)]
    source = save_gguf(tmp_path / "q.gguf", tiny_model("qwen2"), tokens=tokens, more={"tokenizer.ggml.merges": merges})
    convert_model(source, tmp_path / "native")
    one, other = ktitan.load(source)[1], ktitan.load(tmp_path / "native")[1]
    assert one("a12b")["input_ids"] == other("a12b")["input_ids"] == [tokens.index(t) for t in ("a", "12", "b")]


def test_any_reader_opens_the_files(tiny_gguf, tmp_path):
    convert_model(tiny_gguf, tmp_path)
    names = set()
    for path in tmp_path.glob("*.titan.safetensors"):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        assert (8 + length) % 4096 == 0 and len(raw) % 4096 == 0
        with safe_open(path, "np") as file:
            metadata = file.metadata()
            for name in file.keys():  # noqa: SIM118
                begin, end = header[name]["data_offsets"]
                assert begin % 4096 == end % 4096 == 0
                assert np.array_equal(file.get_tensor(name), np.frombuffer(raw[8 + length :][begin:end], np.uint8))
                names.add(name)
        assert metadata["titan.layout"] == "rows"
        for parts in json.loads(metadata["titan.parts"]):
            assert all(part["at"] % 64 == 0 for part in parts)
    assert "model.layers.1.mlp.experts[0]" in names and "model.embed_tokens" in names


def test_an_expert_is_one_span_with_small_gaps(tiny_gguf, tmp_path):
    convert_model(tiny_gguf, tmp_path)
    source = open_source(tmp_path)
    parts = [info for name, info in source.tensors.items() if name.startswith("model.layers.2.mlp.experts[3].")]
    spans = [source.spans(info, 0, info.nbytes) for info in parts]
    assert len(parts) >= 2 and all(len(span) == 1 for span in spans)
    ends = [(one.offset, one.offset + one.nbytes) for (one,) in spans]
    assert ends[0][0] % 4096 == 0
    assert all(0 <= after[0] - before[1] < 4096 for before, after in itertools.pairwise(ends))
    assert {one.file for (one,) in spans} <= source.stamps.keys()


def test_stripes_over_three_drives(tmp_path, logits):
    from support.good_models import small_llama

    source = save_gguf(tmp_path / "wide.gguf", small_llama(hidden_size=192, intermediate_size=512))
    drives = [tmp_path / "one", tmp_path / "two"]
    convert_model(source, tmp_path / "native", stripes=drives)
    assert torch.equal(logits(tmp_path / "native"), logits(source))
    opened = open_source(tmp_path / "native")
    name = "model.layers.1.mlp.down_proj.weight"
    info = opened.tensors[name]
    spans = opened.spans(info, 0, info.nbytes)
    assert info.nbytes > LEAST_STRIPED_BYTES and len(spans) == 3 and sum(span.nbytes for span in spans) == info.nbytes
    assert {span.file.split("/")[-2] for span in spans} == {"native", "stripe-1", "stripe-2"}
    assert all(span.nbytes % 4096 == 0 for span in spans[:-1]) and all(span.offset % 4096 == 0 for span in spans)
    whole = b"".join(bytes(opened.read_bytes(info, first, 1000)) for first in range(0, 100_000, 1000))
    assert whole == bytes(opened.read_bytes(info, 0, 100_000))
    small = opened.tensors["model.layers.1.input_layernorm.weight"]
    assert len(opened.spans(small, 0, small.nbytes)) == 1
    assert sum(1 for drive in drives for _ in drive.glob("*.titan.safetensors")) >= 4
    convert_model(tmp_path / "native", tmp_path / "joined")
    assert torch.equal(logits(tmp_path / "joined"), logits(source))
