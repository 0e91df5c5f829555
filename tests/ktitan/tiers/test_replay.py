"""Replays: known figures of traces, the optimum by brute force, and what a table says."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from ktitan.errors import BudgetError, UnsupportedError
from ktitan.native.replay import ReplaySpec, replay, replay_optimal
from ktitan.tiers.options import POLICIES
from ktitan.tiers.recall import recalls
from ktitan.tiers.reference.optimal import optimal_reference
from ktitan.tiers.reference.replay import replay_reference
from ktitan.tiers.replay import Size, parse_policies, parse_sizes, replay_trace
from ktitan.tiers.trace import Trace, load_trace


def random_spec(random, layers=2, tokens=30, chosen=2, experts=6, shared=False, least=None):
    topk = np.argsort(random.random((layers, tokens, experts)) * random.random(experts), axis=2)[..., :chosen]
    slots = [int(random.integers(least or chosen, experts)) for _ in range(layers)]
    domain_of = [0 if shared else layer for layer in range(layers) for _ in range(experts)]
    return ReplaySpec(
        np.sort(topk, 2), np.array([0]), experts, tuple(domain_of), (sum(slots),) if shared else tuple(slots)
    )


def trace_of(spec, predicted=None):
    layers, tokens, _ = spec.topk.shape
    ids = np.array([3, 4, 6, 7][:layers], np.int32)
    starts = np.array([0, tokens], np.int32)
    return Trace(spec.topk.astype(np.uint8), np.ones(spec.topk.shape, np.float16), starts, ids, spec.experts, predicted)


def best_of_all(calls, slots):
    """Most hits of any cache that may let misses pass, by trying every content after every call."""
    states = {frozenset(): 0}
    for call in calls:
        after = {}
        for content, hits in states.items():
            total = hits + len(content & call)
            for keep in combinations(sorted(content | call), min(slots, len(content | call))):
                key = frozenset(keep)
                after[key] = max(after.get(key, 0), total)
        states = after
    return max(states.values())


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bypass", [False, True])
def test_the_optimum_is_that_of_the_plain_program(shared, bypass):
    random = np.random.default_rng()
    for _ in range(20):
        spec = random_spec(random, layers=3, tokens=40, chosen=3, experts=8, shared=shared)
        # Among records of one later call any may leave, so only sums are equal.
        assert replay_optimal(spec, bypass).sum() == optimal_reference(spec, bypass).sum()


def test_nothing_hits_more_than_the_optimum_with_bypass():
    random = np.random.default_rng()
    for _ in range(10):
        spec = random_spec(random, layers=1, tokens=12)
        calls = [frozenset(call) for call in spec.topk[0].tolist()]
        assert replay_optimal(spec, True).sum() == best_of_all(calls, spec.domain_slots[0])
        assert replay_optimal(spec, False).sum() <= replay_optimal(spec, True).sum()


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("admitting", "pinned")])
def test_no_policy_that_admits_all_passes_the_optimum(policy):
    random = np.random.default_rng()
    for shared in (False, True):
        spec = random_spec(random, tokens=300, shared=shared)
        assert replay(spec, POLICIES.index(policy), 1.02).hit.sum() <= replay_optimal(spec, False).sum()


@pytest.mark.parametrize("policy", range(-1, len(POLICIES) - 1))
@pytest.mark.parametrize("shared", [False, True])
def test_both_programs_take_the_same_decisions(policy, shared):
    """Also with fewer slots than a token demands, and with more layers than the automatic choice looks at."""
    random = np.random.default_rng()
    for layers, tokens in ((3, 120), (11, 60)):
        spec = random_spec(random, layers=layers, tokens=tokens, chosen=3, experts=9, shared=shared, least=1)
        spec = replace(spec, row_starts=np.array([0, tokens // 2]), spares=int(random.integers(0, 4)))
        one, other = replay(spec, policy, 1.05), replay_reference(spec, policy, 1.05)
        np.testing.assert_array_equal(one.hit, other.hit)
        np.testing.assert_array_equal(one.policies, other.policies)
        assert one.passed == other.passed


def test_without_a_library_the_reference_replays(monkeypatch, caplog):
    trace = trace_of(random_spec(np.random.default_rng(), tokens=100))
    wanted = replay_trace(trace, [Size("3", 3)], ["lru", "auto"])
    monkeypatch.setattr("ktitan.tiers.replay.native_reason", lambda: "not built")
    found = replay_trace(trace, [Size("3", 3)], ["lru", "auto"])
    assert [one.hit_rate for one in found] == [one.hit_rate for one in wanted]
    assert "reference" in caplog.text


def test_a_cache_without_slots_is_refused():
    spec = random_spec(np.random.default_rng())
    broken = ReplaySpec(spec.topk, spec.row_starts, spec.experts, spec.record_domain, (0, 1))
    with pytest.raises(UnsupportedError):
        replay(broken, 0, 1.0)
    with pytest.raises(UnsupportedError):
        replay_optimal(broken, True)


def test_one_slot_in_all_is_too_few():
    spec = random_spec(np.random.default_rng(), layers=1)
    with pytest.raises(BudgetError, match="one slot in all"):
        replay_trace(trace_of(spec), [Size("1", 1)], ["lru"])


def test_hits_stand_where_the_trace_names_the_expert():
    """The first demand of an expert is no hit, whatever the order in which a token names its experts."""
    random = np.random.default_rng()
    spec = random_spec(random, tokens=50)
    trace = trace_of(ReplaySpec(np.flip(spec.topk, 2), *list(vars(spec).values())[1:]))
    for outcome in replay_trace(trace, [Size("all", 6)], ["lru"]):
        for layer in range(2):
            seen = set()
            for token in range(50):
                for k, expert in enumerate(trace.topk[layer, token].tolist()):
                    assert outcome.hit[layer, token, k] == (expert in seen)
                seen |= set(trace.topk[layer, token].tolist())


def test_sizes_and_policies():
    assert parse_sizes("12.5%, 25%,16", 32) == [Size("12.5%", 4), Size("25%", 8), Size("16", 16)]
    assert parse_policies("LRU,auto,lru") == ["lru", "auto"]
    for text in ("0", "33", "x", "200%", "", "-1", "nan%", "inf%", "1e400%"):
        with pytest.raises(UnsupportedError):
            parse_sizes(text, 32)
    with pytest.raises(UnsupportedError, match="policy"):
        parse_policies("mru")


def test_regret_is_the_share_of_avoidable_misses():
    trace = trace_of(random_spec(np.random.default_rng(), tokens=200))
    bypass, belady, lru = replay_trace(trace, [Size("3", 3)], ["lru"])
    assert (bypass.policy, belady.policy, lru.policy, bypass.regret) == ("belady-bypass", "belady", "lru", 0)
    misses = (~lru.hit).sum(), (~bypass.hit).sum()
    assert lru.regret == pytest.approx((misses[0] - misses[1]) / misses[0])


def test_recall_counts_what_was_foreseen():
    random = np.random.default_rng()
    spec = random_spec(random, layers=3, tokens=40)
    predicted = np.argsort(random.random((3, 40, 6)), 2)[..., :4].astype(np.int16)
    predicted[1, 7] = -1
    hit = random.random(spec.topk.shape) < 0.5
    found = {(one.of, one.guesses): one.value for one in recalls(trace_of(spec, predicted), hit)}
    for guesses in (2, 4):
        right = {"all": [], "between": [], "from dense": [], "misses": []}
        for layer, token, k in np.ndindex(*spec.topk.shape):
            if (layer, token) == (1, 7):
                continue
            good = spec.topk[layer, token, k] in predicted[layer, token, :guesses]
            # Layers 3 and 6 come after one without experts.
            kinds = ["all", "between" if layer == 1 else "from dense", *([] if hit[layer, token, k] else ["misses"])]
            for kind in kinds:
                right[kind].append(good)
        for kind, values in right.items():
            assert found[kind, guesses] == pytest.approx(np.mean(values))
    assert recalls(trace_of(spec)) == []


@pytest.mark.fixtures
@pytest.mark.parametrize(("name", "gain"), [("trace_dsv3", 0.04), ("trace_dsv3_notables", 0.0)])
def test_auto_is_above_lru_and_lfu(fixtures_dir, name, gain):
    trace = load_trace(fixtures_dir / "fixtures" / f"{name}.npz")
    found = replay_trace(trace, parse_sizes("12.5%,25%,50%", trace.n_experts), ["auto", "lru", "lfu"])
    for size in {one.size for one in found}:
        rates = {one.policy: one.hit_rate for one in found if one.size == size}
        # At an eighth a token wants all slots of its layer: nothing to gain by that much.
        assert rates["auto"] >= max(rates["lru"], rates["lfu"]) + (0 if size.text == "12.5%" else gain)


@pytest.mark.fixtures
@pytest.mark.parametrize(
    ("name", "size", "known"),
    [
        ("trace_dsv3_notables", "12.5%", {"lru": 0.230, "lfu": 0.230, "belady": 0.230, "belady-bypass": 0.463}),
        ("trace_dsv3_notables", "25%", {"lru": 0.425, "lfu": 0.425, "belady": 0.598, "belady-bypass": 0.662}),
        ("trace_dsv3_notables", "50%", {"lru": 0.698, "lfu": 0.691, "belady": 0.850, "belady-bypass": 0.864}),
        ("trace_dsv3", "25%", {"lru": 0.48, "sequence-lfu": 0.533}),
        ("trace_dsv3", "50%", {"lru": 0.74, "sequence-lfu": 0.793}),
    ],
)
def test_known_figures_of_traces_come_out(fixtures_dir, name, size, known):
    trace = load_trace(fixtures_dir / "fixtures" / f"{name}.npz")
    policies = [policy for policy in known if not policy.startswith("belady")]
    found = {one.policy: one.hit_rate for one in replay_trace(trace, parse_sizes(size, trace.n_experts), policies)}
    for policy, rate in known.items():
        assert found[policy] == pytest.approx(rate, abs=0.01)
