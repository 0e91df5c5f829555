"""Cache options as users write them."""

from __future__ import annotations

import pytest

from ktitan.errors import UnsupportedError
from ktitan.tiers.options import CHOICES, CacheOptions, parse_cache


def test_what_is_left_open_is_automatic() -> None:
    assert parse_cache(None) == parse_cache("") == CacheOptions("auto", "auto", "auto")
    assert parse_cache(" Policy = LRU , prefetch=off,") == CacheOptions("lru", "auto", "off")


@pytest.mark.parametrize(("name", "choice"), [(name, choice) for name, them in CHOICES.items() for choice in them])
def test_every_choice_is_taken(name: str, choice: str) -> None:
    assert getattr(parse_cache(f"{name}={choice}"), name) == choice


def test_all_faults_at_once() -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse_cache("policy=best,prefetch,speed=high,scope=layer,scope=global")
    found = [fault.message for fault in caught.value.faults]
    assert len(found) == 4
    assert "'best' is no policy" in found[0]
    assert "lru" in caught.value.faults[0].remedy


def test_options_of_a_program_are_looked_at_too() -> None:
    assert parse_cache(CacheOptions("lru", "global", "off")) == CacheOptions("lru", "global", "off")
    with pytest.raises(UnsupportedError) as caught:
        parse_cache(CacheOptions("best", "layer", "maybe"))
    assert len(caught.value.faults) == 2


def test_guests_need_spare_slots() -> None:
    assert CacheOptions().has_guests
    assert CacheOptions(policy="admitting", prefetch="off").has_guests
    assert not CacheOptions(policy="lru", prefetch="off").has_guests
