"""Carrying a plan out and taking it back: all or nothing, bit for bit."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from transformers import AutoModelForCausalLM

import ktitan
from ktitan.weights.files import FileReader

from support.tiny_models import on_meta, padded_batch, random_ids, save_tiny, tiny_model

FAMILIES = ["llama_tied", "mixtral", "deepseek_v3"]


def logits(model, seed=0):
    with torch.inference_mode():
        return model(random_ids(2, 9, seed)).logits


def structure(model):
    return {name: type(module) for name, module in model.named_modules()}


@pytest.fixture(params=FAMILIES)
def saved(request, tmp_path):
    """(folder, stock model) of one family."""
    return tmp_path, save_tiny(request.param, tmp_path)


class TestUndo:
    def test_reread_from_the_source(self, saved):
        folder, stock = saved
        model = on_meta(folder)
        before = structure(model)
        ktitan.optimize_and_load(model, "auto", weights=folder, device="cpu")
        assert structure(model) != before
        assert model.ktitan.undo() is model
        assert structure(model) == before
        assert not hasattr(model, "ktitan")
        assert torch.equal(logits(model), logits(stock))

    def test_from_kept_originals_without_the_source(self, saved):
        folder, stock = saved
        model = ktitan.optimize_and_load(on_meta(folder), "auto", weights=folder, device="cpu", keep_original=True)
        for file in folder.glob("*.safetensors"):
            file.unlink()
        model.ktitan.undo()
        assert torch.equal(logits(model), logits(stock))

    def test_source_that_is_gone_leaves_the_model_injected(self, saved):
        folder, _ = saved
        model = ktitan.optimize_and_load(on_meta(folder), "auto", weights=folder, device="cpu")
        wanted, before = logits(model), structure(model)
        for file in folder.glob("*.safetensors"):
            file.unlink()
        with pytest.raises(ktitan.IoError):
            model.ktitan.undo()
        assert structure(model) == before
        assert torch.equal(logits(model), wanted)

    @pytest.mark.parametrize("keep_original", [False, True])
    def test_a_model_that_was_its_own_source(self, saved, keep_original):
        _, stock = saved
        model = copy.deepcopy(stock).train()
        before = structure(model)
        gradients = {name: p.requires_grad for name, p in model.named_parameters()}
        ktitan.optimize_and_load(model, "auto", device="cpu", keep_original=keep_original)
        assert (logits(model) - logits(stock)).abs().max() < 1e-4
        assert not any(p.requires_grad for p in model.parameters())
        model.ktitan.undo()
        assert structure(model) == before
        assert model.training
        assert {name: p.requires_grad for name, p in model.named_parameters()} == gradients
        assert torch.equal(logits(model.eval()), logits(stock))

    def test_lost_stock_tensors_are_said(self, saved):
        _, stock = saved
        model = copy.deepcopy(stock)
        rules = {
            "version": 1,
            "rules": [
                {
                    "match": {"name": r"model\.layers\.1\.self_attn\.o_proj"},
                    "replace": {"class": "linear.torch", "kwargs": {"dtype": "bfloat16"}},
                }
            ],
        }
        ktitan.optimize_and_load(model, rules, device="cpu")
        with pytest.raises(ktitan.UnsupportedError, match="keep_original"):
            model.ktitan.undo()
        assert model.model.layers[1].self_attn.o_proj.weight.dtype is torch.bfloat16

    def test_inject_again_after_undo(self, saved):
        folder, stock = saved
        model = ktitan.optimize_and_load(on_meta(folder), "auto", weights=folder, device="cpu")
        model.ktitan.undo()
        ktitan.optimize_and_load(model, "auto", weights=folder, device="cpu")
        assert (logits(model) - logits(stock)).abs().max() < 1e-4

    def test_the_generation_config_comes_with_the_weights_and_goes_with_undo(self, saved):
        folder, _ = saved
        (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7], "max_new_tokens": 3}')
        model = on_meta(folder)
        before = model.generation_config
        ktitan.optimize_and_load(model, "auto", weights=folder, device="cpu")
        assert model.generation_config.eos_token_id == [2, 7]
        assert model.generation_config.disable_compile  # an injected operator is opaque to torch.compile
        model.ktitan.undo()
        assert model.generation_config is before and not before.disable_compile


class TestAllOrNothing:
    def test_a_read_that_fails_leaves_the_stock_model_on_meta(self, saved, monkeypatch):
        folder, _ = saved
        model = on_meta(folder)
        before = structure(model)
        reads = 0
        real = FileReader.read

        def failing(self, *args):
            nonlocal reads
            reads += 1
            if reads > 5:
                raise ktitan.IoError("the drive is gone")
            real(self, *args)

        monkeypatch.setattr(FileReader, "read", failing)
        with pytest.raises(ktitan.IoError):
            ktitan.optimize_and_load(model, "auto", weights=folder, device="cpu")
        assert structure(model) == before
        assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
        assert not hasattr(model, "ktitan")
        monkeypatch.setattr(FileReader, "read", real)
        ktitan.optimize_and_load(model, "auto", weights=folder, device="cpu")

    def test_a_file_that_shrank_is_an_io_error(self, saved):
        folder, _ = saved
        model = on_meta(folder)
        plan = ktitan.plan_model(folder)
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(ktitan.FormatError):
            ktitan.optimize_and_load(model, "auto", weights=folder, device="cpu")
        from ktitan.inject import apply_plan

        with pytest.raises(ktitan.IoError, match="ends 100 bytes early"):
            apply_plan(model, plan)
        assert all(parameter.is_meta for parameter in model.parameters())

    def test_twice_is_refused(self, saved):
        folder, _ = saved
        model = ktitan.optimize_and_load(on_meta(folder), "auto", weights=folder, device="cpu")
        wanted = logits(model)
        with pytest.raises(ktitan.UnsupportedError, match="injected already"):
            ktitan.optimize_and_load(model, "auto", weights=folder, device="cpu")
        assert torch.equal(logits(model), wanted)

    def test_quant_says_that_it_is_not_there(self, saved):
        folder, _ = saved
        with pytest.raises(ktitan.UnsupportedError, match="q4_k"):
            ktitan.optimize_and_load(on_meta(folder), "auto", weights=folder, quant="q4_k")


class TestAsAModule:
    """What users do with modules keeps working on an injected model."""

    @pytest.fixture
    def injected(self, saved):
        folder, _ = saved
        return ktitan.optimize_and_load(on_meta(folder), "auto", weights=folder, device="cpu")

    def test_nothing_on_meta_and_nothing_to_train(self, injected):
        tensors = [*injected.parameters(), *injected.buffers()]
        assert not any(tensor.is_meta or tensor.requires_grad for tensor in tensors)
        assert injected.device == torch.device("cpu")
        assert injected.dtype is torch.float32

    def test_tied_weights_are_one_tensor(self, injected):
        tied = injected.config.tie_word_embeddings
        assert (injected.lm_head.weight is injected.model.embed_tokens.weight) == tied

    def test_state_dict_has_the_stock_names_and_loads_back(self, injected, saved):
        _, stock = saved
        state = injected.state_dict()
        assert list(state) == list(stock.state_dict())
        wanted = logits(injected)
        injected.load_state_dict({name: tensor.clone() for name, tensor in state.items()})
        assert torch.equal(logits(injected), wanted)

    def test_save_pretrained_gives_the_stock_checkpoint(self, injected, saved, tmp_path_factory):
        _, stock = saved
        folder = tmp_path_factory.mktemp("again")
        injected.save_pretrained(folder)
        again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        assert torch.equal(logits(again), logits(stock))

    def test_deepcopy(self, injected):
        wanted = logits(injected)
        twin = copy.deepcopy(injected)
        with torch.no_grad():
            next(twin.parameters()).zero_()
        assert torch.equal(logits(injected), wanted)
        assert not torch.equal(logits(twin), wanted)
        with pytest.raises(ktitan.UnsupportedError, match="copy"):
            twin.ktitan.undo()
        assert hasattr(injected, "ktitan")

    def test_to_another_device_and_dtype(self, injected, saved):
        _, stock = saved
        wanted = logits(injected)
        assert torch.equal(logits(injected.to("cpu")), wanted)
        half, stock_half = logits(injected.to(torch.bfloat16)), logits(stock.to(torch.bfloat16))
        assert half.dtype is torch.bfloat16
        assert (half - stock_half).float().abs().mean() < 0.05 * stock_half.float().abs().mean()

    def test_pickle(self, injected):
        twin = pickle.loads(pickle.dumps(injected))
        assert torch.equal(logits(twin), logits(injected))
        assert twin.ktitan.plan.rows == injected.ktitan.plan.rows
        with pytest.raises(ktitan.UnsupportedError, match="copy"):
            twin.ktitan.undo()

    def test_operators_are_freed_by_undo(self, injected):
        operator = weakref.ref(injected.model.layers[1].self_attn)
        assert operator() is not None
        injected.ktitan.undo()
        gc.collect()
        assert operator() is None

    def test_model_is_freed(self, saved):
        folder, _ = saved
        model = ktitan.optimize_and_load(on_meta(folder), "auto", weights=folder, device="cpu")
        weight = weakref.ref(model.model.embed_tokens.weight)
        del model
        gc.collect()
        assert weight() is None


class TestBudget:
    """The KV cache may not grow beyond what the budget leaves."""

    def test_stream_ends_with_a_budget_error_and_the_model_stays_usable(self, tmp_path):
        from support.tiny_tokenizer import tiny_tokenizer

        save_tiny("llama", tmp_path)
        plan = ktitan.plan_model(tmp_path, device="cpu", dtype="float32", context=128)
        model = ktitan.optimize_and_load(
            on_meta(tmp_path), "auto", weights=tmp_path, device="cpu", budget=f"ram={plan.totals['ram']}", context=128
        )
        assert model.ktitan.kv_budget_bytes == plan.parts["ram"]["kv"]
        tokenizer = tiny_tokenizer()
        with pytest.raises(ktitan.BudgetError):
            list(ktitan.stream(model, tokenizer, "a" * 120, max_new_tokens=64, greedy=True, ignore_eos=True))
        short = list(ktitan.stream(model, tokenizer, "a" * 20, max_new_tokens=8, greedy=True, ignore_eos=True))
        assert short

    def test_kept_originals_count(self, tmp_path):
        stock = save_tiny("llama", tmp_path)
        size = sum(p.numel() * 4 for p in stock.parameters())
        plan = ktitan.plan_model(tmp_path, device="cpu", dtype="float32")
        with pytest.raises(ktitan.BudgetError, match="originals"):
            ktitan.optimize_and_load(
                on_meta(tmp_path), "auto", weights=tmp_path, device="cpu", keep_original=True,
                budget=f"ram={plan.totals['ram'] + size // 2}",
            )  # fmt: skip


class TestPhases:
    """A rule may give prefill another operator."""

    @pytest.fixture
    def switched(self, tmp_path):
        stock = save_tiny("mixtral", tmp_path)
        rules = {
            "version": 1,
            "rules": [
                {
                    "match": {"class": "Linear"},
                    "replace": {
                        "class": "linear.torch",
                        "prefill": {"class": "linear.torch", "kwargs": {"dtype": "bfloat16"}},
                    },
                }
            ],
        }
        return stock, ktitan.optimize_and_load(on_meta(tmp_path), rules, weights=tmp_path, device="cpu")

    def test_each_phase_runs_its_operator(self, switched):
        stock, model = switched
        ids = random_ids(1, 6)
        with torch.inference_mode():
            prefill = model(ids).logits
            assert not torch.allclose(prefill, stock(ids).logits, atol=1e-4)  # bfloat16
            one = model(ids[:, :1]).logits
            assert torch.allclose(one, stock(ids[:, :1]).logits, atol=1e-4)  # float32

    def test_both_are_in_the_plan_and_undo_works(self, switched):
        stock, model = switched
        row = next(row for row in model.ktitan.plan.rows if row.path == "lm_head")
        assert "prefill: linear.torch on cpu" in row.notes
        assert row.bytes == stock.lm_head.weight.numel() * (4 + 2)
        model.ktitan.undo()
        assert torch.equal(logits(model), logits(stock))

    @pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
    def test_attention_keeps_its_children_under_the_switch(self, tmp_path, family):
        stock = save_tiny(family, tmp_path)
        attention = {"class": "attention.torch", "prefill": {"class": "attention.torch", "kwargs": {"absorb": False}}}
        rules = {
            "version": 1,
            "rules": [
                {"match": {"name": r".*\.self_attn"}, "replace": attention},
                {"match": {"name": r".*\.o_proj"}, "replace": {"class": "linear.torch"}},
            ],
        }
        model = ktitan.optimize_and_load(on_meta(tmp_path), rules, weights=tmp_path, device="cpu")
        assert type(model.model.layers[1].self_attn.o_proj).__name__ == "TorchLinear"
        assert list(model.state_dict()) == list(stock.state_dict())
        batch = padded_batch()
        wanted = stock.generate(**batch, max_new_tokens=8, do_sample=False)
        for one in (model, copy.deepcopy(model)):
            assert torch.equal(one.generate(**batch, max_new_tokens=8, do_sample=False), wanted)
        model.ktitan.undo()
        assert torch.equal(logits(model), logits(stock))

    @pytest.mark.parametrize(
        ("main", "prefill"), [("keep", "linear.torch"), ("linear.torch", "keep"), ("linear.torch", "attention.torch")]
    )
    def test_what_cannot_alternate_is_refused_at_its_line(self, tmp_path, main, prefill):
        save_tiny("llama", tmp_path)
        file = tmp_path / "rules.yaml"
        match = "{name: lm_head}"
        file.write_text(
            f"version: 1\nrules:\n  - match: {match}\n    replace:\n      class: {main}\n"
            f"      prefill: {{class: {prefill}}}\n"
        )
        with pytest.raises(ktitan.RuleError, match=r"rules\.yaml:6"):
            ktitan.optimize_and_load(on_meta(tmp_path), file, weights=tmp_path, device="cpu")

    def test_equal_operators_share_their_tensors(self, tmp_path):
        save_tiny("llama", tmp_path)
        replace = {"class": "linear.torch", "prefill": {"class": "linear.torch"}}
        rules = {"version": 1, "rules": [{"match": {"class": "Linear"}, "replace": replace}]}
        model = ktitan.optimize_and_load(on_meta(tmp_path), rules, weights=tmp_path, device="cpu")
        switch = model.model.layers[0].mlp.up_proj
        assert switch.decode.weight.data_ptr() == switch.prefill.weight.data_ptr()


class TestSources:
    def test_the_first_source_that_has_a_tensor_wins_and_a_rule_may_name_one(self, tmp_path):
        first, second = tmp_path / "first", tmp_path / "second"
        one, two = save_tiny("mixtral", first, seed=1), save_tiny("mixtral", second, seed=2)
        rules = {
            "version": 1,
            "rules": [
                {"match": {"class": "MixtralExperts"}, "replace": {"class": "experts.torch", "source": "second"}},
                {"match": {"class": "Linear"}, "replace": {"class": "linear.torch"}},
            ],
        }
        model = ktitan.optimize_and_load(on_meta(first), rules, weights=[first, second], device="cpu")
        layer = model.model.layers[0]
        assert torch.equal(layer.mlp.experts.down_proj, two.model.layers[0].mlp.experts.down_proj)
        assert torch.equal(layer.self_attn.q_proj.weight, one.model.layers[0].self_attn.q_proj.weight)

    def test_sharded_checkpoints(self, tmp_path):
        stock = save_tiny("mixtral", tmp_path, max_shard_size="100KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 2
        model = ktitan.optimize_and_load(on_meta(tmp_path), "auto", weights=tmp_path, device="cpu")
        assert (logits(model) - logits(stock)).abs().max() < 1e-4

    def test_the_folder_of_the_config_is_the_default(self, tmp_path):
        stock = save_tiny("llama", tmp_path)
        model = ktitan.optimize_and_load(on_meta(tmp_path), "auto", device="cpu")
        assert (logits(model) - logits(stock)).abs().max() < 1e-4

    def test_progress_ends_at_the_total(self, tmp_path):
        save_tiny("llama", tmp_path)
        calls = []
        ktitan.optimize_and_load(on_meta(tmp_path), "auto", device="cpu", progress=lambda *a: calls.append(a))
        assert calls[-1][0] == calls[-1][1] > 0
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_a_model_without_rules_for_anything_is_still_stock(tmp_path):
    stock = save_tiny("llama", tmp_path)
    rules = {"version": 1, "rules": [{"match": {"name": "lm_head"}, "replace": {"class": "keep"}}]}
    model = ktitan.optimize_and_load(on_meta(tmp_path), rules, weights=tmp_path, device="cpu")
    assert torch.equal(logits(model), logits(stock))


def test_plain_torch_modules_can_be_injected():
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    wanted = net(x)
    rules = {"version": 1, "rules": [{"match": {"class": "Linear"}, "replace": {"class": "linear.torch"}}]}
    ktitan.optimize_and_load(net, rules, device="cpu")
    assert torch.allclose(net(x), wanted, atol=1e-6)


def test_pipeline(tmp_path):
    from transformers import pipeline

    from support.tiny_tokenizer import tiny_tokenizer

    stock = save_tiny("llama", tmp_path)
    model = ktitan.optimize_and_load(on_meta(tmp_path), "auto", weights=tmp_path, device="cpu")
    tokenizer = tiny_tokenizer()
    generate = {"max_new_tokens": 8, "do_sample": False}
    mine = pipeline("text-generation", model=model, tokenizer=tokenizer)("ab cd", **generate)
    theirs = pipeline("text-generation", model=stock, tokenizer=tokenizer)("ab cd", **generate)
    assert mine == theirs


def test_batches_with_padding_after_a_deepcopy_of_the_cache(tmp_path):
    stock = save_tiny("llama", tmp_path)
    model = ktitan.optimize_and_load(on_meta(tmp_path), "auto", weights=tmp_path, device="cpu")
    batch = padded_batch()
    wanted = stock.generate(**batch, max_new_tokens=6, do_sample=False)
    assert torch.equal(model.generate(**batch, max_new_tokens=6, do_sample=False), wanted)


def test_tiny_models_are_not_trivial():
    """The equalities above would mean nothing for a model whose output ignores its input."""
    model = tiny_model("deepseek_v3")
    assert (logits(model, 0) - logits(model, 1)).abs().max() > 0.1
