"""How far the prompt is, the end of a prompt by its reader, and an answer whose opening is given."""

import pytest

from ktitan.engine.generate import GenerationStats, stream

LINKS = {ord("\n"): ord("o"), ord("o"): ord("k"), ord("k"): 258, ord(">"): ord("o")}


@pytest.fixture
def chain(rig):
    return rig.chain_model(LINKS), rig.byte_tokenizer()


def test_progress_is_told_and_changes_nothing(chain):
    model, tokenizer = chain
    messages = [{"role": "user", "content": "x" * 40}]
    told, stats = [], GenerationStats()
    pieces = stream(model, tokenizer, messages, chunk_tokens=16, stats=stats, on_prompt=lambda *at: told.append(at))
    assert "".join(pieces) == "".join(stream(model, tokenizer, messages)) == "ok"
    total = stats.prompt_tokens
    assert told == [(0, total), *((done, total) for done in range(16, total, 16)), (total, total)]


def test_whoever_hears_of_it_can_end_it_within_a_chunk(chain):
    model, tokenizer = chain
    stats = GenerationStats()

    def leave(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(stream(model, tokenizer, "x" * 40, chunk_tokens=8, stats=stats, on_prompt=leave))
    assert (stats.prompt_tokens, stats.stop_reason) == (8, "closed")


@pytest.mark.parametrize("prompt", ["text", [{"role": "user", "content": "hi"}]])
def test_an_opening_is_part_of_the_answer_and_the_model_goes_on_from_it(chain, prompt):
    model, tokenizer = chain
    assert "".join(stream(model, tokenizer, prompt, opening="<think>\n")) == "<think>\nok"
    assert "".join(stream(model, tokenizer, prompt, opening="<think>o")) == "<think>ok"


def test_an_opening_that_the_template_writes_is_not_written_twice(rig):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
    stats = GenerationStats()
    messages = [{"role": "user", "content": "hi"}]
    tokenizer = rig.byte_tokenizer(template)
    pieces = stream(rig.chain_model(LINKS), tokenizer, messages, opening="<think>\n", stats=stats)
    assert "".join(pieces) == "ok"
    assert stats.prompt_tokens == len("hi<think>")
