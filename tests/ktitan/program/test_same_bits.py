"""Programs against the module path: equal bits, however a prompt is cut."""

import pytest

import ktitan

from support.operator_rig import fresh_seed
from support.packed_models import CONFIGS, write_packed
from support.programs import assert_same_steps, load, program_of, random_ids

CUTS = (30, 69, 70, 71, 72)


@pytest.mark.parametrize("family", list(CONFIGS))
def test_quantised(family, tmp_path):
    seed = fresh_seed()
    path = tmp_path / "model.gguf"
    write_packed(path, family, "q4_k", seed % 1000)
    model = ktitan.load(path, device="cpu")[0]
    program = program_of(model)
    assert not program.reasons, program.reasons
    assert_same_steps(model, program, random_ids(model, 75, seed), CUTS)
