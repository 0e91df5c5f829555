"""How hub ids are written."""

import pytest

from ktitan.errors import WeightError
from ktitan.hub.names import HubName, parse_name, read_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/name", HubName("org/name")),
        ("o-r_g/n.1-B", HubName("o-r_g/n.1-B")),
        ("org/name@main", HubName("org/name", "main")),
        ("org/name@refs/pr/1", HubName("org/name", "refs/pr/1")),
        ("org/name:Q4_K_M", HubName("org/name", None, "Q4_K_M")),
        ("org/name@v1.0:q4_k_m", HubName("org/name", "v1.0", "q4_k_m")),
        ("org/name/a.gguf", HubName("org/name", None, None, "a.gguf")),
        ("org/name/Q4/a b-00001-of-00002.GGUF@dev", HubName("org/name", "dev", None, "Q4/a b-00001-of-00002.GGUF")),
    ],
)
def test_what_is_one(text, name):
    assert parse_name(text) == name and str(name) == text


@pytest.mark.parametrize(
    "text",
    [
        "name",
        "/org/name",
        "./org/name",
        "../name",
        "org/..",
        "org/.",
        "org/na..me",
        "org/name/",
        "org//name",
        "a/b/c",
        "org/name@",
        "org/name@..",
        "~/org",
        "org/name@a/../b",
        "org/name@/etc",
        "org/name@a//b",
        "org/name:",
        "org/name:a/b",
        "org/../x.gguf",
        "org/name/../x.gguf",
        "C:/models",
        "org/name/./x.gguf",
        "org/name/x.gguf:Q4_K_M",
        "org/name.git",
        "org/na--me",
        "org/name-",
        "org/nämé",
        "org\\name",
        "org/name\n",
        "",
    ],
)
def test_what_is_none(text):
    assert parse_name(text) is None


def test_a_name_has_its_longest_length():
    assert parse_name("org/" + "n" * 92) and not parse_name("org/" + "n" * 93)


def test_a_revision_stands_in_one_place():
    assert read_name("org/name", "dev") == read_name("org/name@dev", "dev") == HubName("org/name", "dev")
    for text, revision in (("org/name@main", "dev"), ("org/name", "../dev"), ("org/name", "dev:q4"), ("../x", None)):
        with pytest.raises(WeightError):
            read_name(text, revision)
