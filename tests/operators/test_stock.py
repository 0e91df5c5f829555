import pytest
import torch
from torch import nn

from ktitan.operators.stock import altered_reason, plain_attributes, probing, shell_of, surplus_reason

from support.operator_rig import fresh_seed, injected, random_ids, tiny_model


def test_hooks_that_only_record_do_not_count():
    """Asking a stock model for hidden states leaves transformers' hooks on it; it can be injected nevertheless."""
    seed = fresh_seed()
    model = tiny_model("llama", seed)
    ids = random_ids(1, 4, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model(input_ids=ids, output_hidden_states=True)
    assert len(model.model.layers[0]._forward_hooks) > 0
    assert all(altered_reason(module) is None for module in model.modules())


def test_hidden_states_are_still_recorded():
    seed = fresh_seed()
    reference = tiny_model("mixtral", seed)
    model = injected(reference)
    ids = random_ids(1, 4, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        expected, actual = (one(input_ids=ids, output_hidden_states=True).hidden_states for one in (reference, model))
    assert len(actual) == len(expected) == 3
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(actual, expected, strict=True))


def test_plain_attributes_leave_tensors_and_children_out():
    module = nn.Linear(3, 2)
    module.flag, module.nothing = 7, None
    assert plain_attributes(module) == {"in_features": 3, "out_features": 2, "flag": 7, "nothing": None}
    shell = shell_of(nn.Linear, plain_attributes(module))
    assert (shell.flag, shell.training, dict(shell.named_parameters())) == (7, False, {})


def test_surplus_names_everything():
    module = nn.Module()
    module.known, module.other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    module.child = nn.Linear(1, 1)
    module.register_buffer("table", torch.ones(1))
    reason = surplus_reason(module, {"known"})
    assert reason == "it has parameters other and buffers table and children child, which this operator does not know"
    assert surplus_reason(module, {"known", "other"}, {"table"}, {"child"}) is None


def test_probing_restores_the_callers_defaults():
    torch.set_default_dtype(torch.float16)
    try:
        with pytest.raises(ValueError), torch.device("meta"), probing():
            assert (torch.ones(1).dtype, torch.ones(1).device.type) == (torch.float32, "cpu")
            assert not torch.is_grad_enabled()
            raise ValueError
        assert torch.get_default_dtype() == torch.float16
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.is_grad_enabled()
