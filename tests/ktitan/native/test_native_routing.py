"""Routing in native code: cases by hand, a twin in float64, the same bits everywhere, odd numbers, wrong arguments."""

import copy
import pickle
import shutil
import subprocess

import numpy as np
import pytest
import torch
from test_native_symbols import CXX

from ktitan.errors import FormatError, UnsupportedError
from ktitan.native import library
from ktitan.native.library import ISAS, use_isa
from ktitan.native.matrix import PackedMatrix
from ktitan.native.routing import SCORES, Router, gated, matrix_over, route

from support.operator_rig import fresh_seed

pytestmark = pytest.mark.skipif(library.state().handle is None, reason="no native library")


def router_with(logits, **form):
    """A router that gives these logits for the row [1]."""
    return Router(matrix_over(torch.tensor(logits, dtype=torch.float32)[:, None].contiguous()), **form)


def routed(logits, **form):
    index, weights = route(torch.ones(1, 1), router_with(logits, **form))
    return index[0].tolist(), [round(float(one), 5) for one in weights[0]]


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float32)


def test_negative_scores_under_a_group_mask():
    """Experts of groups that are left out must not win because all others are below 0 (trap m-negbias)."""
    form = {"correction": vector(-2, -2, -2.1, -2.1), "groups": 2, "groups_kept": 1, "group_best": 2}
    given = {"chosen": 2, "scores": "sigmoid", "normalise": True}
    assert routed([0.2, 0.1, -0.1, -0.2], **form, **given) == ([0, 1], [0.51156, 0.48844])


def test_weights_come_from_uncorrected_scores():
    """Logits of -18 with corrections of 12: rebuilding the score from the sum would lose it."""
    form = {"correction": torch.full((4,), 12.0), "chosen": 2, "scores": "sigmoid", "normalise": True}
    assert routed([-18.0] * 4, **form) == ([0, 1], [0.5, 0.5])


@pytest.mark.parametrize("scores", SCORES)
def test_of_equal_ones_the_lower_number(scores):
    assert routed([1.0, 2.0, 2.0, 1.0, 2.0], chosen=4, scores=scores)[0] == [1, 2, 4, 0]
    assert routed([0.0] * 6, chosen=2, scores=scores, groups=3, groups_kept=2)[0] == [0, 1]
    assert routed([0.0, -0.0, 0.0], chosen=3, scores=scores)[0] == [0, 1, 2]


def test_normalised_or_not_and_scaled():
    logits = [float(np.log(one)) for one in (0.1, 0.2, 0.3, 0.4)]
    assert routed(logits, chosen=2) == ([3, 2], [0.4, 0.3])
    assert routed(logits, chosen=2, scaling=2.5) == ([3, 2], [1.0, 0.75])
    assert routed(logits, chosen=2, normalise=True) == ([3, 2], [0.57143, 0.42857])
    assert routed(logits, chosen=2, normalise=True, scaling=2.0) == ([3, 2], [1.14286, 0.85714])
    assert routed(logits, chosen=2, scores="softmax_chosen") == ([3, 2], [0.57143, 0.42857])
    assert routed([0.0, 1.0], chosen=1, scores="sigmoid", scaling=3.0) == ([1], [2.19318])


def test_scores_that_vanish():
    """Sigmoids of 0 over their sum of 0 (plus 1e-20) are 0; of probabilities of 0 the lower numbers are chosen."""
    assert routed([-200.0, -190.0, -180.0], chosen=2, scores="sigmoid", normalise=True) == ([0, 1], [0.0, 0.0])
    assert routed([-300.0, -200.0, 0.0, -100.0], chosen=3) == ([2, 0, 1], [1.0, 0.0, 0.0])
    assert routed([-300.0, -200.0, 0.0, -100.0], chosen=3, scores="softmax_chosen") == ([2, 3, 1], [1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("best", "kept", "expected"),
    [
        (1, 1, [0, 1]),  # the best single score, 0.9, is in the first group
        (2, 1, [2, 3]),  # the best pair, 0.6 + 0.5, in the second
        (2, 2, [0, 2, 3]),  # and of the others 0.9 + 0 counts for more than 0.4 + 0.3
        (1, 2, [0, 2, 3]),
    ],
)
def test_best_groups(best, kept, expected):
    logits = [0.9, 0.0, 0.6, 0.5, 0.4, 0.3]
    # The corrected scores are the logits: softmax scores of equal logits, which the corrections outweigh.
    form = {"correction": vector(*logits), "groups": 3, "groups_kept": kept, "group_best": best}
    assert routed([0.0] * 6, chosen=len(expected), **form)[0] == expected


def test_numbers_that_are_none():
    nan, infinity = float("nan"), float("inf")
    for scores in SCORES:
        for logits in ([nan] * 5, [1.0, nan, 2.0, nan, 0.0], [infinity, -infinity, nan, infinity, 1.0]):
            for form in ({}, {"correction": vector(nan, 1, nan, -infinity, infinity), "normalise": True}):
                index, _ = routed(logits, chosen=5, scores=scores, **form)
                assert sorted(index) == [0, 1, 2, 3, 4]
    assert routed([1.0, nan, 2.0, nan], chosen=3, scores="sigmoid")[0] == [2, 0, 1]
    assert routed([nan, 1.0, nan, 2.0], chosen=3, scores="sigmoid")[0] == [3, 1, 0]
    assert sorted(routed([nan] * 4, chosen=2, groups=2, groups_kept=1)[0]) == [0, 1]


FORMS = [
    {"chosen": 2, "normalise": True},
    {"chosen": 3, "scores": "softmax_chosen"},
    {
        "chosen": 4,
        "scores": "sigmoid",
        "groups": 8,
        "groups_kept": 3,
        "group_best": 2,
        "normalise": True,
        "scaling": 2.5,
    },
    {"chosen": 6, "groups": 4, "groups_kept": 2, "group_best": 1, "scaling": 16.0},
]


def random_router(generator, format="f32", experts=64, hidden=75, **form):
    weight = torch.randn(experts, hidden, generator=generator) / hidden**0.5
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[format]
    bias = torch.randn(experts, generator=generator) * 0.3
    correction = torch.randn(experts, generator=generator) * 0.1 if form.get("scores") == "sigmoid" else None
    return Router(matrix_over(weight.to(dtype)), bias, correction, **form), weight.to(dtype)


def twin(hidden, weight, router):
    """The same in float64, index and weights by expert."""
    logits = hidden.double() @ weight.double().T + router.bias.double()
    scores = {"softmax": logits.softmax(-1), "softmax_chosen": logits, "sigmoid": logits.sigmoid()}[router.scores]
    ranks = scores if router.correction is None else scores + router.correction.double()
    grouped = ranks.view(len(ranks), router.groups, -1)
    best = grouped.topk(router.group_best, -1).values.sum(-1).topk(router.groups_kept, -1).indices
    closed = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, False)
    closed &= router.groups > 1
    index = grouped.masked_fill(closed[..., None], -torch.inf).flatten(1).topk(router.chosen, -1).indices
    weights = scores.gather(1, index)
    weights = weights.softmax(-1) if router.scores == "softmax_chosen" else weights
    weights = weights / weights.sum(-1, keepdim=True) if router.normalise else weights
    return index, weights * router.scaling, logits


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_against_a_twin_in_float64(form, format):
    generator = torch.Generator().manual_seed(fresh_seed())
    router, weight = random_router(generator, format, **form)
    hidden = torch.randn(300, 75, generator=generator)
    index, weights, logits = route(hidden, router, logits=True)
    expected = twin(hidden, weight, router)
    same = (index == expected[0]).all(-1)
    assert (~same).sum() <= 1  # a tie in float32
    assert torch.allclose(weights[same].double(), expected[1][same], rtol=1e-5)
    assert torch.allclose(logits.double(), expected[2], atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_same_bits_for_every_instruction_set_thread_count_and_split(form):
    generator = torch.Generator().manual_seed(fresh_seed())
    router, _ = random_router(generator, **form)
    hidden = torch.randn(270, 75, generator=generator)
    expected = route(hidden, router, logits=True)
    before = library.threads()
    try:
        for isa in ISAS:
            for threads in (1, 3):
                library.set_threads(threads)
                with use_isa(isa):
                    for step in (1, 7, 270):
                        parts = [route(rows, router, logits=True) for rows in hidden.split(step)]
                        assert all(map(torch.equal, map(torch.cat, zip(*parts, strict=True)), expected))
    finally:
        library.set_threads(before)


def test_no_rows():
    router, _ = random_router(torch.Generator().manual_seed(0), chosen=2)
    index, weights = route(torch.empty(0, 75), router)
    assert index.shape == weights.shape == (0, 2)
    assert gated(torch.empty(0, 5), torch.empty(0, 1)).shape == (0, 5)


def test_a_gate_is_a_sigmoid_with_the_same_bits_in_any_split():
    generator = torch.Generator().manual_seed(fresh_seed())
    x, scores = torch.randn(40, 33, generator=generator), torch.randn(40, 1, generator=generator) * 20
    out = gated(x, scores)
    assert torch.allclose(out, x * scores.sigmoid(), rtol=1e-6, atol=0)
    assert torch.equal(torch.cat([gated(*one) for one in zip(x.split(1), scores.split(1), strict=True)]), out)
    assert torch.equal(gated(x.T.contiguous().T, scores), out)


def test_weights_are_seen_where_they_are_and_copied_by_pickle():
    router, weight = random_router(torch.Generator().manual_seed(1), chosen=2)
    hidden = torch.randn(9, 75)
    expected = route(hidden, router)
    assert copy.deepcopy(router) is router
    assert all(map(torch.equal, route(hidden, pickle.loads(pickle.dumps(router))), expected))
    weight.neg_()
    assert not torch.equal(route(hidden, router)[1], expected[1])


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"chosen": 0}, "0 experts of 6"),
        ({"chosen": 7}, "7 experts of 6"),
        ({"chosen": 3, "groups": 3, "groups_kept": 1}, "3 experts of 2"),
        ({"groups": 4}, "1 of 4 groups"),
        ({"groups": 3, "groups_kept": 4}, "4 of 3 groups"),
        ({"groups": 3, "group_best": 3}, "best 3"),
        ({"scores": "relu"}, "scores 'relu'"),
        ({"bias": torch.zeros(5)}, "bias is torch.float32 [5]"),
        ({"correction": torch.zeros(6, dtype=torch.float64)}, "correction is torch.float64 [6]"),
    ],
)
def test_forms_that_do_not_fit_are_refused(form, words):
    with pytest.raises(FormatError, match=words.replace("[", r"\[")):
        Router(matrix_over(torch.zeros(6, 4)), **form)


def test_any_bits_give_experts_that_are_there_and_wrong_forms_a_status(repository, tmp_path):
    """Without sanitizers here; `make asan` runs more of it with them."""
    if shutil.which(CXX[0]) is None:
        pytest.skip(f"no {CXX[0]}")
    source, made = repository / "csrc/cpu/check/route_fuzz.cpp", tmp_path / "route_fuzz"
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", f"-Wl,-rpath,{library.LIBRARY.parent}"]
    subprocess.run([*CXX, *flags, source, library.LIBRARY, "-o", made], check=True)
    done = subprocess.run([made, "--seed", str(fresh_seed())], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wrong_arguments_are_refused():
    with pytest.raises(FormatError, match="a router is q8_0"):
        Router(PackedMatrix("q8_0", 4, 32))
    with pytest.raises(FormatError, match="is no matrix of f32"):
        PackedMatrix.over("f32", 3, np.zeros((2, 8), np.uint8))
    with pytest.raises(UnsupportedError, match="or not contiguous"):
        matrix_over(torch.zeros(4, 6).T)
    router = router_with([0.0, 1.0])
    for wrong in (torch.zeros(2, 2), torch.zeros(1), torch.zeros(1, 1, dtype=torch.float64)):
        with pytest.raises(UnsupportedError, match="hidden is"):
            route(wrong, router)
    with pytest.raises(UnsupportedError, match="no backward pass"):
        route(torch.zeros(1, 1, requires_grad=True), router)
    with pytest.raises(UnsupportedError, match="scores is"):
        gated(torch.zeros(2, 3), torch.zeros(2))
