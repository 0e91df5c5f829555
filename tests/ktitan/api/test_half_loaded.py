"""A refusal leaves nothing behind: the user's model is untouched, files are closed, and after a load all is filled."""

import copy
import gc
import os
import pickle
import weakref

import pytest
import torch

import ktitan
from ktitan.errors import FormatError, IoError, RuleError, UnsupportedError, WeightError
from ktitan.weights.files import FileReader

from support.bad_input import Edit, edit, load, open_files, tensors
from support.good_models import copied, save_gguf, small_llama
from support.tiny_models import on_meta

SINGLE = "model.safetensors"
RULES = {"version": 1, "rules": [{"match": {"class": "Linear"}, "replace": {"class": "linear.torch"}}]}


def snapshot(model):
    """Everything about a model that a half-done injection could leave changed."""
    return {
        "modules": {name: id(module) for name, module in model.named_modules()},
        "tensors": {name: id(tensor) for name, tensor in [*model.named_parameters(), *model.named_buffers()]},
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "training": [module.training for module in model.modules()],
        "gradients": [parameter.requires_grad for parameter in model.parameters()],
        "attributes": sorted(vars(model)),
        "generation": model.generation_config.to_dict(),
    }


def broken_after(reads):
    """A step that lets the drive fail at the given read."""

    def patch(monkeypatch):
        real, count = FileReader.read, 0

        def read(self, *arguments):
            nonlocal count
            count += 1
            if count > reads:
                raise IoError("the drive is gone", "drive", "check it")
            real(self, *arguments)

        monkeypatch.setattr(FileReader, "read", read)

    return patch


def nothing(monkeypatch):
    """No step."""


REFUSALS = [
    (
        "missing",
        edit(tensors(lambda s: {n: t for n, t in s.items() if "up_proj" not in n})),
        RULES,
        nothing,
        WeightError,
    ),
    ("broken", edit(lambda f: (f / SINGLE).write_bytes(b"no")), RULES, nothing, FormatError),
    ("rules", edit(), [{"match": {"name": "x"}, "replace": {"class": "os.system"}}], nothing, RuleError),
    ("generation", edit(lambda f: (f / "generation_config.json").write_text("{")), RULES, nothing, FormatError),
    ("first read", edit(), RULES, broken_after(0), IoError),
    ("late read", edit(), "auto", broken_after(15), IoError),
]


@pytest.mark.parametrize(
    ("make", "rules", "patch", "error"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
@pytest.mark.parametrize("real", [False, True], ids=["meta", "real"])
def test_the_users_model_is_as_it_was(models, tmp_path, monkeypatch, make, rules, patch, error, real):
    folder = make(models, tmp_path)
    model = small_llama().train() if real else on_meta(models.folder)
    before, files = snapshot(model), open_files()
    patch(monkeypatch)
    with pytest.raises(error) as caught:
        ktitan.optimize_and_load(model, rules, weights=folder, device="cpu")
    assert type(caught.value) is error
    assert snapshot(model) == before and not hasattr(model, "ktitan")
    assert open_files() == files
    monkeypatch.undo()
    ktitan.optimize_and_load(model, RULES, weights=models.folder, device="cpu")  # and it can be tried again


def test_memory_comes_back(models, monkeypatch):
    model, made = on_meta(models.folder), []
    real = torch.empty

    def watched(*arguments, **options):
        tensor = real(*arguments, **options)
        made.append(weakref.ref(tensor))
        return tensor

    broken_after(15)(monkeypatch)
    monkeypatch.setattr(torch, "empty", watched)
    with pytest.raises(IoError):
        ktitan.optimize_and_load(model, "auto", weights=models.folder, device="cpu")
    monkeypatch.undo()
    gc.collect()
    assert made and not any(reference() is not None for reference in made)


@pytest.mark.parametrize("kind", ["folder", "tied", "gguf"])
def test_every_tensor_is_filled(models, monkeypatch, kind):
    """Memory that is handed out holds NaN here, so whatever no tensor filled would show."""
    real = torch.empty

    def poisoned(*arguments, **options):
        tensor = real(*arguments, **options)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() and not tensor.is_meta else tensor

    monkeypatch.setattr(torch, "empty", poisoned)
    model, _ = load(getattr(models, kind))
    monkeypatch.undo()
    named = [*model.named_parameters(), *model.named_buffers()]
    assert named and [name for name, tensor in named if tensor.is_meta or tensor.isnan().any()] == []


def test_an_operator_that_fills_nothing_is_found(models):
    from ktitan.operators import TorchLinear
    from ktitan.registry import operators

    @ktitan.register_operator("linear.idle")
    class Idle(TorchLinear):
        def load(self, weights):
            pass

    rules = {"version": 1, "rules": [{"match": {"name": "lm_head"}, "replace": {"class": "linear.idle"}}]}
    model = on_meta(models.folder)
    try:
        with pytest.raises(WeightError, match=r"not filled after loading: lm_head\.weight") as caught:
            ktitan.optimize_and_load(model, rules, weights=models.folder, device="cpu")
    finally:
        operators.remove("linear.idle")
    assert caught.value.where == "LlamaForCausalLM" and "load()" in caught.value.remedy
    assert type(model.lm_head) is torch.nn.Linear and model.lm_head.weight.is_meta


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_undo_refuses_the_weights_of_another_file(models, tmp_path, kind):
    path = Edit(kind)(models, tmp_path)
    model, _ = load(path)
    ids = torch.arange(3, 9)[None]
    with torch.inference_mode():
        wanted = model(ids).logits
    file = path / SINGLE if path.is_dir() else path
    other = small_llama()
    with torch.no_grad():
        other.lm_head.weight.add_(1)
    if path.is_dir():
        other.save_pretrained(tmp_path / "other")
    else:
        save_gguf(tmp_path / "other.gguf", other)
    os.replace(tmp_path / "other" / SINGLE if path.is_dir() else tmp_path / "other.gguf", file)
    with pytest.raises(IoError, match="replaced or changed since its header was read") as caught:
        model.ktitan.undo()
    assert caught.value.where == str(file) and "put the same file back" in caught.value.remedy
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, wanted)  # still injected, and whole


@pytest.fixture
def packed(tmp_path):
    return load(save_gguf(tmp_path / "packed.gguf", kind="q8_0"))[0]


def test_saving_a_packed_model_writes_nothing(packed, tmp_path):
    with pytest.raises(UnsupportedError, match="packed weights cannot be written") as caught:
        packed.save_pretrained(tmp_path / "out")
    assert "undo()" in caught.value.remedy and "save_pretrained" in caught.value.where
    assert not (tmp_path / "out").exists()
    packed.ktitan.undo()
    packed.save_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / SINGLE).is_file() and "save_pretrained" not in vars(packed)


@pytest.mark.parametrize("kind", ["packed", "plain"])
def test_resizing_the_embedding_is_refused_before_anything_changes(models, packed, kind):
    model = packed if kind == "packed" else load(models.folder)[0]
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(load(models.folder)[0]))):
        with pytest.raises(UnsupportedError, match="cannot be resized") as caught:
            one.resize_token_embeddings(140)
        assert "undo()" in caught.value.remedy and "resize_token_embeddings" in caught.value.where
        assert one.config.vocab_size == 131
    model.ktitan.undo()
    model.resize_token_embeddings(140)
    assert model.get_input_embeddings().weight.shape == (140, 32)


NAME = "mein Modell é 模型"


@pytest.mark.parametrize("kind", ["folder", "shards", "gguf"])
def test_spaces_and_other_alphabets_in_paths(models, tmp_path, kind):
    good = getattr(models, kind)
    place = tmp_path / f"{NAME} tmp"
    place.mkdir()
    path = copied(good, place / f"{NAME}{good.suffix}")
    (place / f"{NAME}.yaml").write_text(f'version: 1\ninclude: ["{NAME} teil.yaml"]\n')
    (place / f"{NAME} teil.yaml").write_text(
        "version: 1\nrules:\n  - match: {name: lm_head}\n"
        f'    replace: {{class: linear.torch, source: "{NAME}{good.suffix}"}}\n'
    )
    rules = place / f"{NAME}.yaml"
    model, _ = ktitan.load(path, rules=rules, device="cpu")
    stock, _ = load(good)
    ids = torch.arange(3, 9)[None]
    with torch.inference_mode():
        assert torch.allclose(model(ids).logits, stock(ids).logits, atol=1e-4)
    assert ktitan.plan_model(path, rules, device="cpu").faults == ()
    if kind == "gguf":
        ktitan.plan_model(models.folder, rules, gguf_path=path, device="cpu").check()
