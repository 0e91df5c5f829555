"""Hops without a second device: `meta` stands in for it on the way in, a recording module on the way out."""

from collections import namedtuple

import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from ktitan.inject.hops import add_hop, moved
from ktitan.inject.journal import Journal
from ktitan.plan.rows import Hop

CPU, META = torch.device("cpu"), torch.device("meta")
Pair = namedtuple("Pair", "left right")


class Recorder(nn.Module):
    """Remembers what it was called with and returns what it was told to."""

    def __init__(self, result=None):
        super().__init__()
        self.result = result
        self.seen = None

    def forward(self, *args, **kwargs):
        self.seen = (args, kwargs)
        return self.result


def test_tensors_in_any_nesting_are_moved_and_other_objects_are_not():
    cache = object()
    x = torch.ones(2)
    value = {"a": [x, (x, None)], "pair": Pair(x, 3), "cache": cache}
    there = moved(value, META)
    assert there["a"][0].is_meta and there["a"][1][0].is_meta and there["a"][1][1] is None
    assert isinstance(there["pair"], Pair) and there["pair"].left.is_meta and there["pair"].right == 3
    assert there["cache"] is cache
    assert moved(x, CPU) is x


def test_inputs_arrive_and_outputs_leave():
    child = Recorder(result=(torch.ones(1), None))
    journal = Journal(child)
    add_hop(child, Hop("child", META, CPU, returns=True), journal)
    out = child(torch.ones(2), position_embeddings=(torch.ones(1), torch.ones(1)), attention_mask=None)
    args, kwargs = child.seen
    assert args[0].device == CPU and kwargs["attention_mask"] is None
    assert out[0].is_meta and out[1] is None
    journal.roll_back()
    assert child(torch.ones(2))[0].device == CPU


def test_without_return_the_output_stays_there():
    child = Recorder(result=torch.ones(1))
    add_hop(child, Hop("child", CPU, META, returns=False), Journal(child))
    out = child(torch.ones(2), attention_mask=torch.ones(3), position_embeddings=(torch.ones(1), torch.ones(1)))
    args, kwargs = child.seen
    assert args[0].is_meta and kwargs["attention_mask"].is_meta
    assert all(table.is_meta for table in kwargs["position_embeddings"])
    assert out.device == CPU


def test_the_model_gives_outputs_back_where_its_inputs_came_from():
    cache = object()
    model = Recorder(result=CausalLMOutputWithPast(logits=torch.ones(1), hidden_states=(torch.ones(2),)))
    model.result["past_key_values" if "past_key_values" in model.result.__dataclass_fields__ else "cache"] = cache
    add_hop(model, Hop("", META, CPU, returns=True), Journal(model))
    # An input that is on the CPU comes back on the CPU, although the model's first parameter is elsewhere.
    out = model(input_ids=torch.ones(1, 2))
    assert out.logits.device == CPU and out.hidden_states[0].device == CPU
    assert cache in tuple(out.values())
