"""Models whose parts do not fit, are broken, or want to run code: each fault with its code, place and remedy."""

import json
import math
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModel, MixtralConfig

import ktitan
from ktitan.errors import FormatError, IoError, UnsupportedError, WeightError

from support.bad_input import (
    Bad,
    assert_refused,
    config,
    edit,
    json_edit,
    load,
    open_folder,
    plan,
    readable,
    tensors,
    without_rights,
    write,
)
from support.gguf_files import gguf_tensors, random_model
from support.good_models import SIZES, TOKENS, save_gguf, small_llama
from support.tiny_models import on_meta, save_tiny

CONFIG, SETTINGS, TOKENIZER, GENERATION = (
    "config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "generation_config.json",
)
AGAIN, ONE = "download", "different checkpoints: take both from one"
# Code that must never run, whatever names it.
TRAP = "import pathlib; pathlib.Path(__file__).with_name('hit').touch()\nraise SystemExit(9)\n"
AUTO_MAP = {"AutoConfig": "mod.C", "AutoModelForCausalLM": "mod.M", "AutoTokenizer": ["mod.T", None]}


def size(name, value, message):
    """A row: a number in config.json that cannot be."""
    return Bad(
        f"{name} {str(value)[:9]}", edit(config(**{name: value})), FormatError, CONFIG, f"{name} is {message}", AGAIN
    )


def odd(name, value, message, where=CONFIG, remedy="check the value"):
    """A row: a value that transformers refuses."""
    return Bad(f"{name} {str(value)[:9]}", edit(config(**{name: value})), UnsupportedError, where, message, remedy)


CONFIGS = [
    Bad("not JSON", edit(write(CONFIG, "{")), FormatError, CONFIG, "not valid JSON", AGAIN),
    Bad("empty", edit(write(CONFIG, "")), FormatError, CONFIG, "not valid JSON", AGAIN),
    Bad("a list", edit(write(CONFIG, "[]")), FormatError, CONFIG, "not a JSON object but list", AGAIN),
    Bad("bytes", edit(write(CONFIG, b"\xff\xfe")), FormatError, CONFIG, "not valid JSON: 'utf-8'", AGAIN),
    Bad("deep", edit(write(CONFIG, '{"a":' * 99999)), FormatError, CONFIG, "nested too deep", AGAIN),
    Bad(
        "nested",
        edit(config(a=json.loads('{"a":' * 40 + "1" + "}" * 40))),
        FormatError,
        CONFIG,
        "deeper than 32",
        AGAIN,
    ),
    size("hidden_size", 0, "0, not a whole number from 1"),
    size("hidden_size", -5, "-5, not a whole"),
    size("hidden_size", "32", "'32', not a whole"),
    size("hidden_size", 1.5, "1.5, not a whole"),
    size("vocab_size", 2**62, "4611686018427387904, not a whole number from 1 to 1099511627776"),
    size("num_hidden_layers", 10**9, "1000000000, not a whole number from 1 to 4096"),
    size("num_labels", 200_000, "200000, not a whole number from 1 to 65536"),
    size("num_hidden_layers", True, "True, not a whole"),
    size("num_key_value_heads", 0, "0, not a whole"),
    size("num_experts", 2**31, "2147483648, not a whole number from 1 to 65536"),
    Bad(
        "chosen",
        edit(config(num_experts=4, num_experts_per_tok=5)),
        FormatError,
        CONFIG,
        "num_experts_per_tok is 5, there are 4 experts",
        AGAIN,
    ),
    Bad(
        "groups",
        edit(config(num_experts=4, n_group=3, topk_group=1)),
        FormatError,
        CONFIG,
        "n_group is 3, which does not divide 4 experts",
        AGAIN,
    ),
    size("rms_norm_eps", math.nan, "nan, not a number from 0 on"),
    Bad("text_config", edit(config(text_config={"n_layer": -1})), FormatError, CONFIG, "text_config.n_layer is", AGAIN),
    Bad("two", edit(config(head_dim=0, vocab_size="x")), FormatError, CONFIG, "vocab_size is 'x'", AGAIN, 2),
    Bad("no type", edit(config(model_type=...)), FormatError, CONFIG, "model_type is missing", "nothing is assumed"),
    Bad("type 5", edit(config(model_type=5)), FormatError, CONFIG, "model_type is missing, or no text", "model_type"),
    odd("num_attention_heads", 3, r"hidden size \(32\) is not a multiple"),
    odd("hidden_act", 5, "hidden_act"),
    odd("rope_parameters", {"rope_type": "yarn"}, "Missing required keys"),
    odd("dtype", "int8", "not a floating-point dtype", "model$", "named in config.json"),
    odd("pad_token_id", 500, "Padding_idx must be within", "model$", "named in config.json"),
    odd("model_type", "lama", "'lama' is not known to transformers", CONFIG, "did you mean '.*'.* update transformers"),
    odd("model_type", "t5", "encoder-decoder, which is not run", "t5", "decoder-only"),
    odd("quantization_config", {"quant_method": "fp8"}, "packed checkpoints.*'fp8'", "model$", "unpacked checkpoint"),
]
EMBEDDING = "^model.embed_tokens.weight$"
TENSORS = [
    Bad(
        "missing",
        edit(tensors(lambda s: {n: t for n, t in s.items() if "up_proj" not in n})),
        WeightError,
        r"^model.layers.1.mlp.up_proj.weight$",
        "no source has it",
        "weights=",
        2,
    ),
    Bad(
        "surplus",
        edit(tensors(lambda s: {**s, "a.b": torch.ones(2), "c": torch.ones(2)})),
        WeightError,
        r"^a\.b$",
        "no place for it",
        ONE,
        2,
    ),
    Bad("escapes", edit(tensors(lambda s: {**s, "\x1b[31m": torch.ones(2)})), WeightError, r"\x1b", "no place", ONE),
    Bad(
        "mis-shaped",
        edit(tensors(lambda s: {**s, "model.norm.weight": torch.ones(33)})),
        WeightError,
        "^model.norm.weight$",
        r"stored as \[33\], the model has \[32\]",
        ONE,
    ),
    Bad(
        "whole numbers",
        edit(tensors(lambda s: {**s, "model.norm.weight": torch.ones(32, dtype=torch.int64)})),
        WeightError,
        "^model.norm.weight$",
        r"whole numbers \(i64\)",
        "plain floats",
    ),
    Bad(
        "complex",
        edit(tensors(lambda s: {**s, "model.norm.weight": torch.ones(32, dtype=torch.complex64)})),
        WeightError,
        "^model.norm.weight$",
        "stored as c64, which is not known",
        "plain floats",
    ),
    Bad(
        "claimed twice",
        edit(tensors(lambda s: {**s, "norm.weight": torch.ones(32)})),
        WeightError,
        "^model.norm.weight$",
        "claimed by model.norm.weight and norm.weight",
        "remove one of the two",
    ),
    Bad(
        "all of these",
        edit(
            tensors(
                lambda s: {
                    **{n: t for n, t in s.items() if ".0.mlp.up" not in n},
                    "a": torch.ones(1),
                    "model.norm.weight": torch.ones(9),
                }
            )
        ),
        WeightError,
        "^a$",
        "no place for it",
        ONE,
        3,
    ),
    Bad(
        "tied, neither",
        edit(tensors(lambda s: {n: t for n, t in s.items() if "embed" not in n}), kind="tied"),
        WeightError,
        EMBEDDING,
        "no source has it",
        "weights=",
        2,
    ),
    Bad(
        "tied, other shape",
        edit(tensors(lambda s: {**s, "lm_head.weight": torch.ones(9, 32)}), kind="tied"),
        WeightError,
        "^lm_head.weight$",
        r"stored as \[9, 32\]",
        ONE,
    ),
    Bad(
        "fewer layers",
        edit(config(num_hidden_layers=1)),
        WeightError,
        "layers.1.mlp.up_proj",
        "no place for it",
        ONE,
        9,
    ),
    Bad(
        "more layers",
        edit(config(num_hidden_layers=3)),
        WeightError,
        "layers.2.mlp.up_proj",
        "no source",
        "weights=",
        9,
    ),
    Bad("vocab_size", edit(config(vocab_size=140)), WeightError, EMBEDDING, r"\[131, 32\].*has \[140", ONE, 2),
]


def gguf(more=None, drop=(), change=None, **options):
    """A row's maker: the good GGUF with other metadata or tensors."""

    def make(models, place):
        stored = None if change is None else change(gguf_tensors(small_llama()))
        return save_gguf(place / "x.gguf", more=more, drop=drop, tensors=stored, **options)

    return make


FOLDER, CONVERT = "HuggingFace folder", "convert the model again"
GGUFS = [
    Bad("architecture", gguf(architecture="nope"), UnsupportedError, "x.gguf", "'nope'.*known: deepseek2", FOLDER),
    Bad("no layers", gguf(drop=["block_count"]), FormatError, "x.gguf", "lacks 'llama.block_count'", CONVERT),
    Bad("many layers", gguf({"block_count": 2**32 - 1}), FormatError, "x.gguf", "4294967295 blocks, .* for 2", CONVERT),
    Bad("text for size", gguf({"embedding_length": "x"}), FormatError, "x.gguf", "embedding_length.*'x'", CONVERT),
    Bad("experts", gguf({"expert_count": 2**31}), FormatError, "x.gguf", "says 2147483648 experts", CONVERT),
    Bad(
        "chosen",
        gguf({"expert_count": 4, "expert_used_count": 9}),
        FormatError,
        "x.gguf",
        "4 experts, 9 of them for a token",
        CONVERT,
    ),
    Bad("heads", gguf({"attention.head_count": 3}), FormatError, "x.gguf", "3 heads cannot share 2", CONVERT),
    Bad("NaN", gguf({"attention.layer_norm_rms_epsilon": math.nan}), FormatError, "x.gguf", "a finite number", CONVERT),
    Bad("no base", gguf({"rope.freq_base": 0.0}), FormatError, "x.gguf", "freq_base is 0.0, not above 0", CONVERT),
    Bad(
        "more tokens", gguf(tokens=[*TOKENS, "z"]), FormatError, "x.gguf", "132 tokens, token_embd.* 131 rows", CONVERT
    ),
    Bad("fewer tokens", gguf(tokens=TOKENS[:9]), FormatError, "x.gguf", "lists 9 tokens, token_embd.* 131", CONVERT),
    Bad(
        "missing",
        gguf(change=lambda t: {n: v for n, v in t.items() if "ffn_up" not in n}),
        WeightError,
        "layers.1.mlp.up_proj",
        "no source has it",
        "weights=",
        2,
    ),
    Bad(
        "surplus",
        gguf(change=lambda t: {**t, "blk.0.x.weight": torch.ones(3)}),
        WeightError,
        "blk.0.x",
        "no place",
        ONE,
    ),
    Bad(
        "mis-shaped",
        gguf(change=lambda t: {**t, "output_norm.weight": torch.ones(33)}),
        WeightError,
        "^model.norm.weight$",
        r"stored as \[33\]",
        ONE,
    ),
    Bad(
        "wrong family",
        lambda m, p: (edit(config(model_type="qwen2"))(m, p), m.gguf),
        UnsupportedError,
        "model.gguf",
        "architecture 'llama', the module is a 'qwen2'",
        "fits llama",
    ),
    Bad(
        "no config",
        lambda m, p: m.folder / "model.safetensors",
        WeightError,
        "model.safetensors",
        "no config.json",
        "folder that holds both",
    ),
]
SPLIT = "gguf-new-metadata --pre-tokenizer NAME: .*llama-bpe"
GGUF_TOKENIZERS = [
    Bad(
        "no split",
        gguf(drop=["tokenizer.ggml.pre"]),
        UnsupportedError,
        "x.gguf",
        "GPT-2's split would be assumed",
        SPLIT,
    ),
    Bad(
        "unknown split",
        gguf({"tokenizer.ggml.pre": "made-up"}),
        UnsupportedError,
        "x.gguf",
        "'made-up' is unknown",
        SPLIT,
    ),
    Bad("split 'default'", gguf({"tokenizer.ggml.pre": "default"}), UnsupportedError, "x.gguf", "'default' is", SPLIT),
    Bad("split a number", gguf({"tokenizer.ggml.pre": 5}), FormatError, "x.gguf", "should be a string", CONVERT),
    Bad("kind", gguf({"tokenizer.ggml.model": "bert"}), UnsupportedError, "x.gguf", "'bert'; known: gpt2", FOLDER),
    Bad("merges", gguf({"tokenizer.ggml.merges": ["x y"]}), FormatError, "x.gguf", "merge 0 .'x y'.", FOLDER),
    Bad("types", gguf({"tokenizer.ggml.token_type": [1]}), FormatError, "x.gguf", "131 tokens have 1 types", FOLDER),
    Bad(
        "template", gguf({"tokenizer.chat_template": 5}), FormatError, "x.gguf", "chat_template' should be a s", CONVERT
    ),
]


def tokens(change):
    return edit(json_edit(TOKENIZER, change))


def setting(name, value):
    return edit(json_edit(SETTINGS, lambda settings: settings.update({name: value})))


def bare(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


TOKENIZERS = [
    Bad("not JSON", edit(write(TOKENIZER, "{")), FormatError, TOKENIZER, "not valid JSON", AGAIN),
    Bad(
        "two broken",
        edit(write(TOKENIZER, ""), write("added_tokens.json", "[]")),
        FormatError,
        "added_tokens.json",
        "not a JSON object",
        AGAIN,
        2,
    ),
    Bad("settings", edit(write(SETTINGS, "[]")), FormatError, SETTINGS, "not a JSON object", AGAIN),
    Bad("deep", edit(write(SETTINGS, '{"a":' * 99999)), FormatError, SETTINGS, "too deep", AGAIN),
    Bad("model", tokens(lambda t: t.update(model=5)), FormatError, TOKENIZER, "data did not match", AGAIN),
    Bad(
        "negative id", tokens(lambda t: t["model"]["vocab"].update(z=-5)), FormatError, TOKENIZER, "expected u32", AGAIN
    ),
    Bad(
        "regex",
        tokens(
            lambda t: t.update(
                pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
            )
        ),
        FormatError,
        TOKENIZER,
        "unmatched parenthesis",
        AGAIN,
    ),
    Bad("end token", setting("eos_token", 5), FormatError, TOKENIZER, "eos_token has to be", AGAIN),
    Bad("template", setting("chat_template", 5), FormatError, SETTINGS, "chat_template is int, not text", AGAIN),
    Bad("none", edit(bare(TOKENIZER, SETTINGS)), WeightError, "model$", "no tokenizer here", "copy tokenizer.json"),
    Bad(
        "beyond",
        tokens(lambda t: t["model"]["vocab"].update(zz=131)),
        WeightError,
        "model$",
        "1 tokens lie beyond the embedding's 131 rows, the first is 'zz'",
        ONE,
    ),
    Bad("generation", edit(write(GENERATION, "{")), FormatError, GENERATION, "not valid JSON", "download"),
    Bad("generation list", edit(write(GENERATION, "[]")), FormatError, GENERATION, "not a JSON object", "download"),
    Bad(
        "end ids",
        edit(json_edit(GENERATION, lambda g: g.update(eos_token_id=[1, "x"], pad_token_id="y"))),
        FormatError,
        GENERATION,
        r"eos_token_id is .*'x'.*, not a token id",
        "delete the file",
        2,
    ),
    Bad(
        "lengths",
        edit(json_edit(GENERATION, lambda g: g.update(max_new_tokens=-1))),
        FormatError,
        GENERATION,
        "max_new_tokens",
        "delete the file",
    ),
]


@pytest.mark.parametrize("bad", [*CONFIGS, *TENSORS, *GGUFS], ids=lambda bad: bad.name)
def test_by_both_doors(models, tmp_path, bad):
    given = bad.make(models, tmp_path)
    for door in (load, plan):
        assert_refused(bad, given, door)


@pytest.mark.parametrize("bad", [*TOKENIZERS, *GGUF_TOKENIZERS], ids=lambda bad: bad.name)
def test_what_only_loading_asks_for(models, tmp_path, bad):
    assert_refused(bad, bad.make(models, tmp_path), load)


@pytest.mark.parametrize("name", [TOKENIZER, SETTINGS, "chat_template.jinja"])
def test_tokenizers_without_permission(models, name):
    def make(path):
        (path / name).touch()
        (path / name).chmod(0)

    with open_folder() as place:
        given = edit(readable, make)(models, place)
        bad = Bad(name, make, IoError, f"/{name}$", "Permission denied", "right to")
        with without_rights():
            assert_refused(bad, given, load)


def test_weights_and_tokenizer_faults_come_together(models, tmp_path):
    folder = edit(config(num_hidden_layers=3), json_edit(TOKENIZER, lambda t: t["model"]["vocab"].update(zz=200)))
    bad = Bad("both", folder, WeightError, "model$", "beyond the embedding", ONE, 10)
    assert_refused(bad, folder(models, tmp_path), load)


CODE = [
    Bad(
        "model",
        edit(config(model_type="mine", auto_map=AUTO_MAP), write("mod.py", TRAP)),
        UnsupportedError,
        CONFIG,
        "'mine' is not known.* code of its own .*mod.M.* never run",
        "no option to run a model's own code",
    ),
    Bad(
        "model without file",
        edit(config(model_type="mine", auto_map=AUTO_MAP)),
        UnsupportedError,
        CONFIG,
        "code of its own",
        "no option to run",
    ),
    Bad(
        "tokenizer",
        edit(
            bare(TOKENIZER),
            json_edit(SETTINGS, lambda s: s.update(tokenizer_class="T", auto_map=AUTO_MAP)),
            write("mod.py", TRAP),
        ),
        UnsupportedError,
        SETTINGS,
        "needs code of the folder",
        "copy the tokenizer.json",
    ),
]


@pytest.mark.parametrize("bad", CODE, ids=lambda bad: bad.name)
def test_code_of_the_folder_never_runs(models, tmp_path, bad, monkeypatch):
    folder = bad.make(models, tmp_path)
    # transformers would ask on stdin, and take a "y" that a pipe brings for a yes.
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run the code"))
    assert_refused(bad, folder, load)
    assert not (folder / "hit").exists() and "mod" not in sys.modules


def test_a_native_class_is_used_in_place_of_code(models, tmp_path):
    folder = edit(config(auto_map=AUTO_MAP), json_edit(SETTINGS, lambda s: s.update(auto_map=AUTO_MAP)))(
        models, tmp_path
    )
    (folder / "mod.py").write_text(TRAP)
    model, _ = load(folder)
    assert type(model).__name__ == "LlamaForCausalLM" and not (folder / "hit").exists()


def test_tokens_added_beyond_the_embedding_are_noted_and_refused_in_a_prompt(models, tmp_path):
    token = {"id": 131, "content": "<img>", "special": True, "single_word": False}
    token |= {"lstrip": False, "rstrip": False, "normalized": False}
    folder = edit(json_edit(TOKENIZER, lambda t: t["added_tokens"].append(token)))(models, tmp_path)
    model, tokenizer = load(folder)
    assert any("'<img>' (id 131)" in note for note in model.ktitan.plan.notes)
    with pytest.raises(UnsupportedError, match="token 131 is none of the embedding's 131 rows") as caught:
        ktitan.stream(model, tokenizer, "a<img>b")
    assert caught.value.where == "input_ids" and "tokenizer of this model" in caught.value.remedy


@pytest.mark.parametrize(("kind", "head"), [("folder", "lm_head.weight"), ("gguf", "output.weight")])
def test_the_head_of_a_larger_class_is_named(models, kind, head):
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.from_pretrained(models.folder))
    with pytest.raises(WeightError) as caught:
        ktitan.optimize_and_load(model, "auto", weights=getattr(models, kind), device="cpu")
    assert caught.value.where == head and "AutoModelForCausalLM" in caught.value.remedy


def transposed(name):
    """A step that turns one expert's matrix: the same numbers, so that a careless reader would put them anywhere."""

    def change(state):
        (key,) = (key for key in state if key.endswith(name))
        return {**state, key: state[key].T.contiguous()}

    return tensors(change)


@pytest.mark.parametrize("name", ["layers.1.block_sparse_moe.experts.2.w1.weight", "experts.0.w2.weight"])
def test_experts_of_different_shapes_are_not_stacked(tmp_path, name):
    save_tiny("mixtral", tmp_path)
    if name.startswith("experts"):
        name = f"layers.0.block_sparse_moe.{name}"
    transposed(name)(tmp_path)
    with pytest.raises(WeightError, match="its parts differ in shape: ") as caught:
        ktitan.optimize_and_load(on_meta(tmp_path), "auto", weights=tmp_path, device="cpu")
    assert "mlp.experts" in caught.value.where and "damaged" in caught.value.remedy


def test_gguf_experts_of_different_shapes_are_not_stacked(tmp_path):
    model = random_model(MixtralConfig(**SIZES, head_dim=8, num_local_experts=4, num_experts_per_tok=2))
    stored = gguf_tensors(model, single_experts=True)
    for name, shape in {"blk.0.ffn_up.1.weight": (3,), "blk.1.ffn_down.2.weight": (64, 32)}.items():
        stored[name] = torch.ones(shape)
    path = save_gguf(tmp_path / "x.gguf", model, tensors=stored)
    bad = Bad("", None, WeightError, "layers.1.mlp.experts.down_proj", "its parts differ in shape", "damaged", 2)
    for door in (load, plan):
        assert_refused(bad, path, door)
