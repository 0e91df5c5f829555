"""Chat templates are a stranger's code: what they may not do is refused at use, with code, place and remedy."""

import json

import pytest

import ktitan
from ktitan.errors import UnsupportedError

from support.bad_input import edit, json_edit, load, write
from support.good_models import save_gguf

SETTINGS = "tokenizer_config.json"
MESSAGES = [{"role": "user", "content": "hi"}]
STOPPED, REFUSED, SYNTAX = "tries what templates may not do", "refuses these messages: ", "not valid Jinja"
TRUST, TALK, SET = "do not trust this model", "start a new conversation", "set tokenizer.chat_template"

TEMPLATES = {
    "runs a command": ("{{ lipsum.__globals__['os'].popen('touch HIT').read() }}", STOPPED, TRUST),
    "looks for classes": ("{{ ''.__class__.__mro__ }}", STOPPED, TRUST),
    "format string": ("{{ '{0.__class__.__mro__}'.format(1) }}", STOPPED, TRUST),
    "changes the messages": ("{{ messages.append(1) }}", STOPPED, TRUST),
    "reads a file": ("{% include '/etc/passwd' %}", REFUSED + "no loader", TALK),
    "syntax": ("{% for %}", SYNTAX + r" \(line 1\)", SET),
    "unknown filter": ("{{ 1|nofilter }}", SYNTAX, SET),
    "raises": ("{{ raise_exception('roles must alternate') }}", REFUSED + "roles must alternate", TALK),
    "huge range": ("{% for i in range(10**12) %}x{% endfor %}", REFUSED + "Range too big", TALK),
    "divides by zero": ("{{ 1 / 0 }}", REFUSED + "division by zero", TALK),
    "calls itself": ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", REFUSED + "maximum recursion", TALK),
    "nests too deep": ("{{" + "(" * 3000 + "1" + ")" * 3000 + "}}", REFUSED + "maximum recursion", TALK),
    "undefined": ("{{ a.b.c }}", REFUSED + "'a' is undefined", TALK),
    "no items": ("{{ cycler() }}", REFUSED + "at least one item", TALK),
    "out of memory": ("{{ '%99999999999999d'|format(1) }}", REFUSED, TALK),
    "nothing": ("{{ '' }}", "makes no prompt", SET),
    "no default": ({"tool_use": "x"}, REFUSED + "This model has multiple chat templates", TALK),
}


@pytest.fixture(scope="module")
def loaded(models):
    return load(models.folder)


def assert_refused(model, tokenizer, message, remedy):
    with pytest.raises(UnsupportedError, match=message) as caught:
        ktitan.stream(model, tokenizer, MESSAGES)
    assert caught.value.where == "chat_template" and remedy in caught.value.remedy


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates(loaded, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    template, message, remedy = TEMPLATES[name]
    model, tokenizer = loaded
    monkeypatch.setattr(tokenizer, "chat_template", template)
    assert_refused(model, tokenizer, message, remedy)
    assert list(tmp_path.iterdir()) == []


PLACES = {
    "settings": lambda text: edit(json_edit(SETTINGS, lambda settings: settings.update(chat_template=text))),
    "jinja file": lambda text: edit(write("chat_template.jinja", text)),
    "GGUF": lambda text: lambda models, place: save_gguf(place / "x.gguf", more={"tokenizer.chat_template": text}),
}


@pytest.mark.parametrize("place", PLACES)
def test_wherever_the_template_stands(models, tmp_path, monkeypatch, place):
    text, message, remedy = TEMPLATES["runs a command"]
    given = PLACES[place](text)(models, tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    model, tokenizer = load(given)
    assert "popen" in tokenizer.chat_template
    assert_refused(model, tokenizer, message, remedy)
    assert list((tmp_path / "here").iterdir()) == [] and not list(tmp_path.rglob("HIT"))


@pytest.mark.parametrize(
    ("prompt", "where", "message"),
    [
        ("\ud800", "prompt", "half of a surrogate pair"),
        ("", "prompt", "is empty"),
        (None, "messages", "non-empty list"),
        ([{"role": "user", "content": "a\udfff"}], "prompt", "half of a surrogate pair"),
        ([{"role": "banana", "content": ""}, {"role": "user", "content": 5}], r"messages\[0\]", "2 messages"),
    ],
)
def test_prompts(loaded, monkeypatch, prompt, where, message):
    model, tokenizer = loaded
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[-1].content }}")
    with pytest.raises(UnsupportedError, match=message) as caught:
        ktitan.stream(model, tokenizer, prompt)
    fault = caught.value.faults[0]
    assert fault.remedy and fault.where == where.replace("\\", "")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([131], "token 131 is none of the embedding's 131 rows"),
        ([-1], "token -1 is none"),
        ([2**40], "token 1099511627776 is none"),
        ([2**70], "no list of token ids"),
        ("x", "no list of token ids"),
        (None, "no list of token ids"),
        ([1.5], "not whole numbers"),
        ([], r"shape \(1, 0\)"),
        ([[1], [2]], r"shape \(2, 1\)"),
    ],
    ids=str,
)
def test_token_ids(loaded, ids, message):
    from ktitan.engine.generate import generate_tokens

    with pytest.raises(UnsupportedError, match=message) as caught:
        generate_tokens(loaded[0], ids, max_new_tokens=1)
    assert caught.value.where == "input_ids" and caught.value.remedy


@pytest.mark.parametrize(("name", "value"), [("temperature", "hot"), ("top_k", -4), ("top_p", 5), ("min_p", "x")])
def test_generation_configs_with_values_that_cannot_be(models, tmp_path, name, value):
    folder = edit(json_edit("generation_config.json", lambda made: made.update({name: value, "do_sample": True})))
    model, tokenizer = load(folder(models, tmp_path))
    with pytest.raises(UnsupportedError, match=str(json.loads(json.dumps(value)))) as caught:
        ktitan.stream(model, tokenizer, "hi")
    assert caught.value.where == name and caught.value.remedy
