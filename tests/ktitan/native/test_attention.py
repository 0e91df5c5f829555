"""Attention on tensors: values against float64, and equal bits however the work and the prompt are cut."""

import itertools
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_native_symbols import CXX

from ktitan.errors import UnsupportedError
from ktitan.native import library
from ktitan.native.attention import Attention, attend, heads_product
from ktitan.native.library import ISAS, use_isa

from support.attention_twin import Case, attention_twin, normal, random_case, visible
from support.contract_bits import same_bits
from support.packed_matrices import packed_matrix

# Tokens and keys: a decoded token, chunks, prompts; pages and groups of pages that are not whole.
SHAPES = ((1, 1), (1, 63), (1, 700), (1, 2500), (5, 64), (17, 65), (65, 65), (130, 200), (200, 700), (3, 1030))
KINDS = ("plain", "window", "sinks", "softcap", "latent", "padded", "added", "free", "all")


def call(case):
    return attend(case.what, case.query, case.key, case.value, case.mask, case.causal)


def case_of(kind, rng, tokens, keys, rows=1):
    if kind == "latent":
        return random_case(rng, tokens, keys, rows, latent=True, heads=int(rng.choice((2, 5, 16))))
    fields = {}
    if kind in ("window", "all"):
        fields["window"] = int(rng.integers(1, keys + 3))
    if kind in ("softcap", "all"):
        fields["softcap"] = float(rng.choice((2.0, 30.0)))
    case = random_case(rng, tokens, keys, rows, **fields)
    if kind in ("sinks", "all"):
        case.what = replace(case.what, sinks=normal(rng, case.what.heads) * 3)
    if kind in ("padded", "all"):
        first = torch.from_numpy(rng.integers(0, keys, (rows, 1, 1, 1)))
        case.mask = (torch.arange(keys) >= first).expand(rows, 1, tokens, keys)
    if kind in ("added", "free"):
        case.causal = kind == "added"
        hidden = torch.from_numpy(rng.random((rows, case.what.heads, tokens, keys)) < 0.4)
        case.mask = normal(rng, *hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
    return case


@pytest.mark.parametrize("kind", KINDS)
def test_values(native, rng, two_threads, kind):
    for tokens, keys in SHAPES:
        case = case_of(kind, rng, tokens, keys, rows=int(rng.choice((1, 2))))
        wanted = attention_twin(case)
        found = call(case)
        assert found.dtype == torch.float32
        torch.testing.assert_close(
            found.double(), wanted, rtol=1e-4, atol=2e-5, msg=f"{kind} {tokens} {keys} {case.what}"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_instruction_sets_and_threads_agree(native, rng, two_threads, kind):
    for tokens, keys in ((1, 1100), (19, 150), (66, 70)):
        case = case_of(kind, rng, tokens, keys)
        library.set_threads(1)
        with use_isa("generic"):
            wanted = call(case)
        for isa, threads in itertools.product(ISAS, (1, 2, 3, 8)):
            library.set_threads(threads)
            with use_isa(isa):
                assert same_bits(call(case), wanted), (isa, threads, tokens, keys)


@pytest.mark.parametrize("kind", ["plain", "window", "sinks", "softcap", "latent"])
def test_every_cut_of_a_prompt(native, rng, two_threads, kind):
    """A token's row is the same alone and in any chunk, and what comes later does not exist for it."""
    total = int(rng.integers(140, 200))
    case = case_of(kind, rng, total, total)
    whole = call(case)
    cuts = [0, *sorted(rng.choice(np.arange(1, total), 5, replace=False).tolist()), total]
    parts = [
        attend(case.what, case.query[:, a:b], case.key[:, :b], case.value[:, :b]) for a, b in itertools.pairwise(cuts)
    ]
    assert same_bits(torch.cat(parts, 1), whole)
    at = int(rng.integers(0, total))
    alone = attend(case.what, case.query[:, at : at + 1], case.key[:, : at + 1], case.value[:, : at + 1])
    assert same_bits(alone, whole[:, at : at + 1])
    case.key[:, at + 1 :] = float("nan")
    case.value[:, at + 1 :] = float("inf")
    assert same_bits(call(case)[:, : at + 1], whole[:, : at + 1])


def test_a_batch_is_its_rows(native, rng, two_threads):
    for kind in KINDS:
        case = case_of(kind, rng, 7, 300, rows=70 if kind == "plain" else 3)
        whole = call(case)
        for row in (0, len(whole) - 1):
            some = slice(row, row + 1)
            mask = None if case.mask is None else case.mask[some]
            one = Case(case.what, case.query[some], case.key[some], case.value[some], mask, case.causal)
            assert same_bits(call(one), whole[some])


def test_strides_do_not_matter(native, rng):
    case = random_case(rng, 9, 150, rows=2)
    wanted = call(case)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (case.query, case.key, case.value)]
    assert same_bits(attend(case.what, *turned), wanted)
    sparse = [torch.stack([x, x], -1)[..., 0] for x in (case.query, case.key, case.value)]
    assert same_bits(attend(case.what, *sparse), wanted)


def test_a_window_is_the_mask_that_says_the_same(native, rng, two_threads):
    for tokens, keys, window in ((1, 700, 1), (30, 400, 100), (150, 150, 64), (5, 2200, 1500)):
        case = random_case(rng, tokens, keys, window=window)
        masked = Case(replace(case.what, window=0), case.query, case.key, case.value, visible(case), True)
        assert same_bits(call(masked), call(case))
        masked.causal = False
        assert same_bits(call(masked), call(case))


def test_rows_that_see_nothing_are_zeros(native, rng):
    for kind in ("plain", "latent", "sinks"):
        case = case_of(kind, rng, 6, 80)
        for hidden in (False, torch.finfo(torch.float32).min, float("-inf")):
            case.mask = torch.ones(1, 1, 6, 80, dtype=torch.bool) if hidden is False else torch.zeros(1, 1, 6, 80)
            case.mask[..., 2, :] = hidden
            found = call(case)
            assert torch.equal(found[:, 2], torch.zeros_like(found[:, 2]))
            assert found[:, 3].abs().max() > 0
    assert torch.equal(attend(case.what, case.query, case.key[:, :0], case.value[:, :0], None, False), found * 0)


def test_what_is_seen_is_not_hidden(native, rng):
    """NaN in a key that is seen comes through."""
    case = random_case(rng, 3, 70)
    case.key[0, 0] = float("nan")
    assert call(case).isnan().all()
    case.mask = torch.ones(1, 1, 3, 70, dtype=torch.bool)
    case.mask[..., 0] = False
    assert call(case).isfinite().all()


@pytest.mark.parametrize("format", ["f32", "bf16", "q8_0"])
def test_heads_have_their_own_matrices(native, rng, two_threads, format):
    for heads, rows, width, tokens in ((1, 40, 32, 1), (5, 33, 64, 3), (16, 96, 128, 40), (3, 8, 32, 600)):
        matrix, weights = packed_matrix(format, heads * rows, width, rng)
        x = normal(rng, tokens, heads, width)
        found = heads_product(matrix, heads, x)
        wide = torch.from_numpy(np.asarray(weights, np.float64)).view(heads, rows, width)
        torch.testing.assert_close(found.double(), torch.einsum("hrc,thc->thr", wide, x.double()), rtol=1e-4, atol=1e-4)
        with use_isa("generic"):
            assert same_bits(heads_product(matrix, heads, x[-1:]), found[-1:])


def test_any_forms_and_wrong_arguments(native, rng, repository, tmp_path):
    """Without sanitizers here; `make asan` runs more of it with them."""
    if shutil.which(CXX[0]) is None:
        pytest.skip(f"no {CXX[0]}")
    source, made = repository / "csrc/cpu/check/attend_fuzz.cpp", tmp_path / "attend_fuzz"
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", f"-Wl,-rpath,{library.LIBRARY.parent}"]
    subprocess.run([*CXX, *flags, source, library.LIBRARY, "-o", made], check=True)
    seed = str(int(rng.integers(1 << 60)))
    done = subprocess.run([made, "--seed", seed, "--calls", "1000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_refused(native, rng):
    case = random_case(rng, 4, 9, heads=4, key_heads=2, key_dim=8, value_dim=8)
    for changes in ({"heads": 3, "key_heads": 2}, {"key_dim": 0}, {"window": -1}, {"latent": True}):
        with pytest.raises(UnsupportedError):
            replace(case.what, **changes)
    with pytest.raises(UnsupportedError, match="sinks"):
        replace(case.what, sinks=torch.zeros(3))
    wrong = {
        "query has shape": {"query": case.query[..., :7]},
        "key has shape": {"key": case.key[:, :, :1]},
        "value has shape": {"value": case.value[:, :5]},
        "query is torch.float64": {"query": case.query.double()},
        "key is on meta": {"key": case.key.to("meta")},
        "mask has shape": {"mask": torch.ones(1, 1, 4, 8, dtype=torch.bool)},
        "mask is torch.int64": {"mask": torch.ones(1, 1, 4, 9, dtype=torch.int64)},
        "causal queries": {"key": case.key[:, :3], "value": case.value[:, :3]},
        "gradient": {"value": case.value.clone().requires_grad_()},
    }
    for pattern, changes in wrong.items():
        with pytest.raises(UnsupportedError, match=pattern):
            call(replace(case, **changes))
    with pytest.raises(UnsupportedError, match="for 3 heads"):
        heads_product(packed_matrix("f32", 8, 4, rng)[0], 3, normal(rng, 1, 3, 4))
    with pytest.raises(UnsupportedError, match=r"0 heads|attention of 0"):
        Attention(0, 1, 8, 8, 1.0)
