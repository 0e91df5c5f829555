"""Native code refuses a program whose operations do not fit its buffers, whatever is wrong with it."""

import random

import numpy as np
import pytest
import torch

from ktitan.errors import UnsupportedError
from ktitan.native import PackedMatrix
from ktitan.native.attention import Attention, Rotation
from ktitan.native.program import Buffer, NativeProgram, Operation
from ktitan.native.program_structs import Norm

from support.operator_rig import fresh_seed


def matrix(rows, columns):
    made = PackedMatrix("f32", rows, columns)
    made.data.view(np.float32)[...] = 1
    return made


ATTENTION = Attention(heads=2, key_heads=1, key_dim=4, value_dim=4, scaling=1.0)
LATENT = Attention(heads=2, key_heads=1, key_dim=4, value_dim=2, scaling=1.0, latent=True)
BUFFERS = [
    Buffer(8),
    Buffer(8),
    Buffer(4),
    Buffer(2, is_index=True),
    Buffer(2),
    Buffer(8, by_sequence=True),
    Buffer(1),
    Buffer(12),
]
RIGHT = [
    Operation("rows", (), (0,), what=matrix(5, 8)),
    Operation("linear", (0,), (2,), what=matrix(4, 8)),
    Operation("norm", (0,), (1,), what=Norm(torch.ones(4), 4, 1e-6, False)),
    Operation("add", (0, 1), (0,)),
    Operation("scale", (0,), (1,), factor=2.0),
    Operation("gate", (0, 6), (1,)),
    Operation("activate", (0, 1), (0,), numbers=(0,)),
    Operation("copy", (0,), (2,), numbers=(2, 0, 2, 2)),
    Operation("rotate", (0,), (0,), what=Rotation(4, 0, 4), numbers=(2, 0)),
    Operation("append", (2, 2), (), numbers=(0,)),
    Operation("attend", (0,), (1,), what=ATTENTION, numbers=(0,)),
    Operation("attend", (7,), (0,), what=LATENT, numbers=(0,)),
    Operation("heads", (0,), (2,), what=matrix(4, 4), numbers=(2,)),
    Operation("last", (0,), (5,)),
    Operation("order", (0,), (1,), what=torch.arange(7, -1, -1)),
]


def made(operations):
    return NativeProgram(operations, BUFFERS, [4])


def test_right_ones_are_taken():
    made(RIGHT)


@pytest.mark.parametrize("number", range(len(RIGHT)))
@pytest.mark.parametrize("run", range(6))
def test_one_operand_that_does_not_fit(number, run):
    """Another buffer of another width, kind or number of rows is refused wherever it stands."""
    rng = random.Random(fresh_seed() + run)
    right = RIGHT[number]
    places = [("inputs", at) for at in range(len(right.inputs))] + [("outputs", at) for at in range(len(right.outputs))]
    if right.kind == "rotate":
        places = [("outputs", 0)]  # the input is the same
    field, at = rng.choice(places)
    old = getattr(right, field)
    fits = {number for number, buffer in enumerate(BUFFERS) if buffer == BUFFERS[old[at]]}
    new = rng.choice([one for one in (-1, len(BUFFERS), 2**31 - 1, *range(len(BUFFERS))) if one not in fits])
    if right.kind in ("append", "copy"):  # of any width
        new = rng.choice([len(BUFFERS), -1, 3, 5])
    elif right.kind == "activate":  # its second input may be missing
        new = rng.choice([2, 3, 4, len(BUFFERS)])
    values = {**vars(right), field: (*old[:at], new, *old[at + 1 :])}
    with pytest.raises(UnsupportedError, match=right.kind):
        made([RIGHT[0], Operation(**values)])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("copy", {"numbers": (7, 0, 2, 1)}),
        ("copy", {"numbers": (-1, 0, 2, 1)}),
        ("copy", {"numbers": (0, 3, 2, 1)}),
        ("copy", {"numbers": (0, 0, 2**62, 1)}),
        ("copy", {"numbers": (0, 0, 1, 3)}),
        ("copy", {"numbers": (0, 0, 1, 0)}),
        ("rotate", {"numbers": (2, 1)}),
        ("rotate", {"numbers": (2, -1)}),
        ("rotate", {"numbers": (1, 0)}),
        ("rotate", {"numbers": (0, 0)}),
        ("rotate", {"what": Rotation(4, 0, 2)}),
        ("rotate", {"what": None}),
        ("activate", {"numbers": (9,)}),
        ("append", {"numbers": (-1,)}),
        ("attend", {"numbers": (-3,)}),
        ("attend", {"what": None}),
        ("heads", {"numbers": (3,)}),
        ("heads", {"numbers": (0,)}),
        ("linear", {"what": None}),
        ("linear", {"what": matrix(4, 7)}),
        ("linear", {"outputs": (0,), "inputs": (0,), "what": matrix(8, 8)}),
        ("order", {"what": torch.tensor([0, 1, 2, 3, 4, 5, 6, 8])}),
        ("order", {"what": torch.tensor([0, 1, 2, 3, 4, 5, 6, -1])}),
    ],
)
def test_settings_that_do_not_fit(kind, changes):
    right = next(one for one in RIGHT if one.kind == kind)
    with pytest.raises(UnsupportedError, match=kind):
        made([Operation(**{**vars(right), **changes})])
