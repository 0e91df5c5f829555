"""Programs against the module path: equal bits, however a prompt is cut."""

import pytest

import ktitan

from support.operator_rig import FAMILIES, fresh_seed
from support.operator_rig import tiny_model as random_model
from support.packed_models import CONFIGS, write_packed
from support.programs import CPU, assert_same_steps, kinds, load, on_cpu, program_of, random_ids
from support.streaming import load_streamed

CUTS = (30, 69, 70, 71, 72)


@pytest.mark.parametrize("family", list(CONFIGS))
def test_quantised(family, tmp_path):
    seed = fresh_seed()
    path = tmp_path / "model.gguf"
    write_packed(path, family, "q4_k", seed % 1000)
    model = ktitan.load(path, device="cpu")[0]
    program = program_of(model)
    # This one has a single row of plain floats.
    assert all(path.endswith("shared_expert_gate") for path in program.reasons), program.reasons
    assert_same_steps(model, program, random_ids(model, 75, seed), CUTS)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("gemma2", "olmoe")])
def test_plain_floats(family):
    """Every module by a .cpu operator, also in families that no GGUF is written of here."""
    seed = fresh_seed()
    model = on_cpu(random_model(family, seed))
    program = program_of(model)
    assert_same_steps(model, program, random_ids(model, 75, seed), CUTS)
