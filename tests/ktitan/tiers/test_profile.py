"""Profiles: what is kept of sessions, whose they are, and that a wrong one costs no hits."""

import threading

import numpy as np
import pytest
import torch

import ktitan
from ktitan.errors import FormatError, IoError, KtitanError, UnsupportedError
from ktitan.tiers.arrays import write_arrays
from ktitan.tiers.profile import Profile, ProfileFile, digest_of, load_profile, merge, save_profile, start_of

from support.streaming import REPOSITORY, cache_of, rules

NAMES = [f"layers.{layer}.experts[{expert}]" for layer in range(2) for expert in range(3)]


def profile(*tokens, names=NAMES):
    return Profile(np.array(tokens, float), digest_of(names), 2, 1)


def test_what_is_saved_is_loaded(tmp_path):
    save_profile(tmp_path / "p", profile(0, 1, 2, 3, 4, 5.5))
    found = load_profile(tmp_path / "p")
    np.testing.assert_array_equal(found.tokens, [0, 1, 2, 3, 4, 5.5])
    assert (found.digest, found.layers, found.sessions) == (digest_of(NAMES), 2, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"tokens": np.array([1.0, np.nan])},
        {"tokens": np.array([1.0, -1])},
        {"tokens": np.zeros((2, 2))},
        {"digest": np.int64(1)},
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, arrays):
    whole = {"tokens": np.ones(2), "digest": np.array("x"), "layers": np.int64(1), "sessions": np.int64(1)}
    write_arrays(tmp_path / "p", {**whole, **arrays} if arrays else {"x": np.ones(1)}, "profile")
    with pytest.raises(FormatError, match="no profile"):
        ProfileFile(tmp_path / "p")


def test_sessions_are_halved_by_those_after_them():
    once = merge(profile(8, 0, 0, 0, 0, 4), np.array([1.0, 1, 0, 0, 0, 0]), begins=True)
    np.testing.assert_array_equal(once.tokens, [5, 1, 0, 0, 0, 2])
    again = merge(once, np.array([0.0, 1, 0, 0, 0, 0]), begins=False)
    np.testing.assert_array_equal(again.tokens, [5, 2, 0, 0, 0, 2])
    assert (once.sessions, again.sessions) == (2, 2)
    assert merge(once, np.zeros(6), begins=True) is once


def test_a_session_that_saves_twice_counts_once(tmp_path):
    save_profile(tmp_path / "p", profile(8, 0, 0, 0, 0, 0))
    file = ProfileFile(tmp_path / "p")
    file.save(profile(1, 1, 0, 0, 0, 0))
    file.save(profile(1, 3, 0, 0, 0, 0))
    np.testing.assert_array_equal(load_profile(tmp_path / "p").tokens, [5, 3, 0, 0, 0, 0])


def test_a_first_session_that_saves_twice_counts_once(tmp_path):
    file = ProfileFile(tmp_path / "p")
    file.save(profile(1, 1, 0, 0, 0, 0))
    file.save(profile(1, 3, 0, 0, 0, 0))
    np.testing.assert_array_equal(load_profile(tmp_path / "p").tokens, [1, 3, 0, 0, 0, 0])


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with pytest.raises(IoError):
        ProfileFile(tmp_path / name)


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link").symlink_to("p")
    ProfileFile(tmp_path / "link").save(profile(1, 0, 0, 0, 0, 0))
    assert (tmp_path / "link").is_symlink()
    assert load_profile(tmp_path / "p").tokens[0] == 1


def test_threads_that_save_at_once_count_a_session_once(tmp_path):
    file, faults = ProfileFile(tmp_path / "p"), []

    def save(count):
        try:
            file.save(profile(count, 0, 0, 0, 0, 0))
        except KtitanError as error:
            faults.append(error)

    threads = [threading.Thread(target=save, args=(count,)) for count in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert load_profile(tmp_path / "p").tokens[0] == 12


def test_another_models_profile_is_refused(tmp_path):
    save_profile(tmp_path / "p", profile(1, 1, 1, names=NAMES[:3]))
    with pytest.raises(UnsupportedError, match="another model"):
        ProfileFile(tmp_path / "p").save(profile(1, 1, 0, 0, 0, 0))
    with pytest.raises(IoError, match="folder"):
        ProfileFile(tmp_path / "none" / "p")


def test_a_start_fills_each_domain_with_its_best_and_seeds_one_token():
    random = np.random.default_rng()
    tokens = random.permutation(np.arange(12.0))
    start = start_of(tokens, [0] * 6 + [1] * 6, [4, 2])
    for first, slots in ((0, 4), (6, 2)):
        own = np.arange(first, first + 6)
        best = own[np.argsort(-tokens[own])]
        assert [r for r in start.reads if r in own] == [r for r in best[:slots][::-1] if tokens[r]]
        assert {r for r in own if start.pinned[r]} == set(best[: slots // 2])
        assert sum(start.seeds[first : first + 6]) == pytest.approx(1)
    nothing = start_of(np.zeros(12), [0] * 6 + [1] * 6, [4, 2])
    assert not nothing.reads and not any(nothing.pinned) and not any(nothing.seeds)


# ---- with a model ----

MODEL = REPOSITORY / "examples" / "models" / "tiny-dsv3.Q4_K_M.gguf"
TEXTS = {
    "code": "int main(int argc, char **argv) {\n    int *values = malloc(n * sizeof(int));\n    for (int i = 0; i < n;",
    "prose": "The history of the city goes back to the time when people first came to the river. They built their",
}


def experts_only():
    made = rules("cpu")
    made["rules"][2]["replace"]["class"] = "experts.streamed"
    made["rules"][3]["replace"]["class"] = "embedding.torch"
    return made


def session(text, policy, profile=None, save=None, tokens=24):
    """Hits and demands of a continuation with a quarter of the experts in RAM, and its tokens."""
    with cache_of(0.25):
        cache = f"policy={policy},prefetch=off"
        model, tokenizer = ktitan.load(str(MODEL), rules=experts_only(), device="cpu", cache=cache, profile=profile)
    try:
        before = model.ktitan.store_stats()
        assert before["demands"] == 0
        assert (before["resident_bytes"] > 0) == (profile is not None)
        ids = tokenizer(text, return_tensors="pt").input_ids
        made = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        after = model.ktitan.store_stats()
        if save is not None:
            model.ktitan.save_profile(save)
        return after["hits"], after["demands"], made
    finally:
        model.ktitan.undo()


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    for subject, text in TEXTS.items():
        session(text, "lru", save=folder / subject)
    return {subject: folder / subject for subject in TEXTS}


@pytest.mark.parametrize(
    ("policy", "subject"), [("lru", "code"), ("decayed-lfu", "prose"), ("auto", "code"), ("auto", "prose")]
)
def test_the_own_profile_helps_and_the_wrong_one_costs_nothing(profiles, policy, subject):
    other = next(one for one in TEXTS if one != subject)
    cold, demands, tokens = session(TEXTS[subject], policy)
    own, _, same = session(TEXTS[subject], policy, profiles[subject])
    wrong, _, too = session(TEXTS[subject], policy, profiles[other])
    # Counts are a function of the demands. LRU loses nothing by what stood in free slots (it is a stack algorithm); a
    # policy that counts may keep another expert here and there: half a percent of the demands.
    margin = 0 if policy == "lru" else demands // 200
    assert own > cold
    assert wrong >= cold - margin
    assert torch.equal(tokens, same) and torch.equal(tokens, too)


def test_a_profile_of_another_model_is_refused_and_the_model_stays_stock(tmp_path):
    save_profile(tmp_path / "p", profile(1, 1, 1, 1, 1, 1))
    with cache_of(0.25), pytest.raises(UnsupportedError, match="another model"):
        ktitan.load(str(MODEL), rules=experts_only(), device="cpu", profile=tmp_path / "p")


def test_a_broken_profile_is_told_before_anything_is_read(tmp_path):
    (tmp_path / "p").write_bytes(b"no profile")
    with pytest.raises(FormatError, match="no profile"):
        ktitan.load(str(MODEL), rules=experts_only(), device="cpu", profile=tmp_path / "p")
