"""The chat over a model whose answers are known: history, interrupts, commands, errors, stdout against stderr."""

import io
from itertools import pairwise
from types import SimpleNamespace

import pytest
from rich.console import Console

from ktitan.errors import UnsupportedError
from ktitan.local_chat.options import ChatOptions
from ktitan.local_chat.session import Session, summary_line


def chain_model(rig, **changes):
    """A chain model that answers the template's last newline with distinct bytes, then the end mark."""
    links = [ord("\n"), *b"ok!", 258]
    model = rig.chain_model(dict(pairwise(links)), **changes)
    model.ktitan = SimpleNamespace(stats=lambda: {"resident_bytes": {"ram": 3 << 20}}, store_stats=lambda: None)
    return model


@pytest.fixture
def chat(rig):
    """A session, and what it wrote to stderr."""
    errors = io.StringIO()
    console = Console(file=errors, markup=False, highlight=False, soft_wrap=True)
    options = ChatOptions("m", stream={"max_new_tokens": 20}, system="Be brief.")
    return Session(chain_model(rig), rig.byte_tokenizer(), options, console), errors


class Script:
    """Stands for the reader: hands out lines, raises what is an exception, then the end of the input."""

    def __init__(self, *entries):
        self.entries = list(entries)

    def read(self):
        entry = self.entries.pop(0) if self.entries else None
        if isinstance(entry, type):
            raise entry
        return entry


def interrupt_at(model, call):
    """Let the forward pass number `call` end with Ctrl-C."""
    calls = []

    def hook(*_):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt

    return model.register_forward_pre_hook(hook)


def roles(session):
    return [(turn["role"], turn["content"]) for turn in session.conversation.turns]


def test_answers_go_to_stdout_and_all_else_to_stderr(chat, capsys):
    session, errors = chat
    assert session.run(Script("first", "", "second")) == 0
    assert capsys.readouterr().out == "ok!\nok!\n"
    assert errors.getvalue().count("| decode 3 tokens") == 2
    assert roles(session) == [("user", "first"), ("assistant", "ok!"), ("user", "second"), ("assistant", "ok!")]
    assert session.conversation.messages()[0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(("kept", "ran"), [(True, [22, 24, 24]), (False, [22, 49, 76])])
def test_a_turn_runs_only_its_new_tokens(rig, capsys, kept, ran):
    """22 tokens of template and question a turn, and the end of the answer before, which was not run."""
    errors, model, passes = io.StringIO(), chain_model(rig), []
    model.register_forward_pre_hook(lambda _, __, given: passes.append(given["input_ids"].shape[1]), with_kwargs=True)
    options = ChatOptions("m", stream={"max_new_tokens": 20}, prompt_cache=kept, stats=True)
    session = Session(model, rig.byte_tokenizer(), options, Console(file=errors, soft_wrap=True, width=999))
    assert session.run(Script("abc", "def", "/stats", "ghi")) == 0
    assert capsys.readouterr().out == "ok!\n" * 3
    assert [tokens for tokens in passes if tokens > 1] == ran
    assert ("tokens kept from before" in errors.getvalue()) and (("kept), " in errors.getvalue()) == kept)


def test_the_context_ends_an_answer_and_refuses_what_does_not_fit(rig, capsys):
    errors = io.StringIO()
    options = ChatOptions("m", context_tokens=39)
    session = Session(chain_model(rig), rig.byte_tokenizer(), options, Console(file=errors, soft_wrap=True, width=999))
    assert session.run(Script("a" * 18, "a" * 99)) == 0
    assert capsys.readouterr().out == "ok\n"
    assert "the context is full" in errors.getvalue() and "there is room for 39" in errors.getvalue()


def test_interrupted_answer_stays_as_far_as_it_was_written(chat, capsys):
    session, errors = chat
    hook = interrupt_at(session._model, 3)
    assert session.turn("first") is False
    hook.remove()
    assert capsys.readouterr().out == "ok\n"
    assert roles(session) == [("user", "first"), ("assistant", "ok")]
    assert "interrupted: the answer so far stays" in errors.getvalue()
    assert session.turn("second") is True
    assert roles(session)[2:] == [("user", "second"), ("assistant", "ok!")]


def test_interrupt_before_any_text_drops_the_question(chat, capsys):
    session, errors = chat
    interrupt_at(session._model, 1)
    assert session.run_once("first") == 130
    assert capsys.readouterr().out == "\n"
    assert roles(session) == []
    assert "interrupted: the question is dropped" in errors.getvalue()


def test_ctrl_c_twice_at_the_prompt_leaves_and_once_does_not(chat):
    session, errors = chat
    assert session.run(Script(KeyboardInterrupt, "first", KeyboardInterrupt, None)) == 0
    assert len(roles(session)) == 2
    assert session.run(Script(KeyboardInterrupt, KeyboardInterrupt, "never")) == 130
    assert len(roles(session)) == 2
    assert "once more" in errors.getvalue()


def test_refused_question_is_told_and_forgotten(rig, capsys):
    errors = io.StringIO()
    model = chain_model(rig, positions=70)
    session = Session(model, rig.byte_tokenizer(), ChatOptions("m"), Console(file=errors, soft_wrap=True))
    assert session.run(Script("x" * 200, "short")) == 0
    assert "[UnsupportedError] max_position_embeddings: the prompt has" in errors.getvalue()
    assert capsys.readouterr().out == "ok!\n"
    assert roles(session) == [("user", "short"), ("assistant", "ok!")]
    with pytest.raises(UnsupportedError):
        session.run_once("x" * 200)


def test_commands(chat, capsys):
    session, errors = chat
    entries = (
        "hi",
        "/stats",
        "/reset",
        "/system Speak up.",
        "/help",
        "/nonsense",
        " /nonsense",
        "/etc/passwd?",
        "/quit",
    )
    assert session.run(Script(*entries, "never")) == 0
    told = errors.getvalue()
    assert "session: prefill" in told
    assert "2 messages in the conversation" in told
    assert "ram: 3.0 MiB resident" in told
    assert "system prompt: Speak up." in told
    assert "/reset         forget the conversation" in told
    assert "/nonsense is no command" in told
    assert [content for role, content in roles(session) if role == "user"] == ["/nonsense", "/etc/passwd?"]
    assert capsys.readouterr().out == "ok!\nok!\nok!\n"


def test_model_without_a_template_says_so(rig):
    errors = io.StringIO()
    Session(chain_model(rig), rig.byte_tokenizer(chat_template=None), ChatOptions("m"), Console(file=errors))
    assert "no chat template" in errors.getvalue()


def test_length_and_context_ends_are_told(chat):
    session, _ = chat
    session._options.stream.update(max_new_tokens=2)
    session.turn("first")
    assert summary_line(session._last).endswith("| ended at --max-new-tokens")
    session._options.stream.update(max_new_tokens=2000)
    session.turn("second")
    assert "ended" not in summary_line(session._last)
