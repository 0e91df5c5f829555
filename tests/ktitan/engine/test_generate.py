"""The loop against transformers' own generate, and its ends: marks, lengths, positions, a reader who leaves."""

import random
from itertools import islice, pairwise

import pytest
import torch
from transformers import DynamicCache, GenerationConfig

from ktitan.engine.conversation import Conversation, check_messages, encode_messages, render_messages
from ktitan.engine.generate import (
    GenerationStats,
    cache_keyword,
    end_ids,
    generate_steps,
    generate_tokens,
    new_cache,
    stream,
)
from ktitan.engine.sampling import Sampling
from ktitan.engine.steps import PromptProgress
from ktitan.errors import UnsupportedError


def chain(text, end=258):
    """The links of a chain model that answers a prompt ending in a newline with `text` (its bytes all different)."""
    links = [ord("\n"), *(text.encode() if isinstance(text, str) else text), end]
    return dict(pairwise(links))


def stock_tokens(model, prompt, count):
    output = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=259
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("chunk_tokens", [1, 7, 16, 512])
@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4, "hidden_size": 48}])
def test_greedy_tokens_equal_transformers_for_every_chunk_size(rig, chunk_tokens, changes):
    model = rig.random_model(random.randrange(10**6), eos_token_id=None, **changes)
    prompt = [random.randrange(256) for _ in range(19)]
    stats = GenerationStats()
    options = {"max_new_tokens": 20, "chunk_tokens": chunk_tokens, "stats": stats}
    assert list(generate_tokens(model, prompt, **options)) == stock_tokens(model, prompt, 20)
    assert (stats.prompt_tokens, stats.new_tokens, stats.decode_steps) == (19, 20, 19)
    assert stats.stop_reason == "length"
    assert stats.prefill_tokens_per_second > 0
    assert stats.decode_tokens_per_second > 0


def test_steps_tell_the_prompts_progress_and_the_raw_distribution(rig):
    model = rig.random_model(random.randrange(10**6), eos_token_id=None)
    prompt = [random.randrange(256) for _ in range(19)]
    sampling = Sampling(temperature=0.5, top_k=3, repetition_penalty=1.3, seed=4)
    options = {"max_new_tokens": 6, "chunk_tokens": 8, "sampling": sampling}
    steps = list(generate_steps(model, prompt, likeliest=2, **options))
    assert steps[:3] == [PromptProgress(8, 19), PromptProgress(16, 19), PromptProgress(19, 19)]
    tokens = steps[3:]
    ids = [token.id for token in tokens]
    assert ids == list(generate_tokens(model, prompt, **options))
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    for row, token in zip(logprobs, tokens, strict=True):
        assert token.logprob == pytest.approx(row[token.id].item(), abs=1e-4)
        assert [one for one, _ in token.likeliest] == row.topk(2).indices.tolist()
    plain = next(
        step for step in generate_steps(model, prompt, max_new_tokens=1) if not isinstance(step, PromptProgress)
    )
    assert (plain.likeliest, plain.logprob != plain.logprob) == ((), True)


@pytest.mark.parametrize(("prompt", "bias"), [([1, 264], {}), ([-1], {}), ([1], {264: 1.0})])
def test_ids_outside_the_vocabulary_are_refused_at_the_call(rig, prompt, bias):
    with pytest.raises(UnsupportedError, match="is none of the"):
        generate_steps(rig.random_model(1), prompt, max_new_tokens=1, sampling=Sampling(logit_bias=bias))


def test_a_cache_that_holds_the_start_gives_the_same_tokens(rig):
    model = rig.random_model(5, eos_token_id=None)
    prompt = [random.randrange(256) for _ in range(40)]
    cold = list(generate_tokens(model, prompt, max_new_tokens=8))
    cache, stats = new_cache(model), GenerationStats()
    list(generate_tokens(model, prompt[:25], max_new_tokens=1, cache=cache))
    assert list(generate_tokens(model, prompt, max_new_tokens=8, cache=cache, stats=stats)) == cold
    assert stats.prompt_tokens == 15
    with pytest.raises(UnsupportedError, match="the cache holds"):
        generate_tokens(model, prompt[:10], max_new_tokens=8, cache=cache)


def test_stock_cache_is_taken_as_it_is(rig):
    model = rig.random_model(9, eos_token_id=None)
    prompt = [1, 2, 3, 4, 5]
    expected = list(generate_tokens(model, prompt, max_new_tokens=9))
    given = DynamicCache(config=model.config)
    assert list(generate_tokens(model, prompt, max_new_tokens=9, cache=given)) == expected
    assert given.get_seq_length() == 13


def test_models_with_a_running_state_get_the_prompt_in_one_pass(rig, monkeypatch):
    model = rig.random_model(2, eos_token_id=None)
    lengths = []
    model.register_forward_pre_hook(lambda _, __, given: lengths.append(given["input_ids"].shape[1]), with_kwargs=True)
    monkeypatch.setattr(type(model), "_is_stateful", True)
    list(generate_tokens(model, [1] * 20, max_new_tokens=2, chunk_tokens=8))
    monkeypatch.setattr(type(model), "_is_stateful", False)
    list(generate_tokens(model, [1] * 20, max_new_tokens=2, chunk_tokens=8))
    assert lengths == [20, 1, 8, 8, 4, 1]


def test_only_the_last_logits_are_asked_for(rig):
    model = rig.random_model(3, eos_token_id=None)
    shapes = []
    model.lm_head.register_forward_hook(lambda _, __, output: shapes.append(tuple(output.shape)))
    list(generate_tokens(model, list(range(30)), max_new_tokens=2, chunk_tokens=16))
    assert shapes == [(1, 1, 264)] * 3


def test_cache_keyword_is_the_versions_own(rig):
    assert cache_keyword(rig.random_model(1)) in ("cache", "past_key_values")
    with pytest.raises(UnsupportedError, match="Linear"):
        cache_keyword(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("generation_eos", "tokenizer_eos", "ends"),
    [
        ([2, 7], None, {2, 7, 258}),
        ([2], 7, {2, 7, 258}),
        (None, 7, {7, 258}),
        (7, None, {7, 258}),
        ("absent", 7, {7, 258}),
    ],
)
def test_end_ids_add_up(rig, generation_eos, tokenizer_eos, ends):
    model = rig.random_model(4)
    if generation_eos == "absent":
        model.generation_config = None
    else:
        model.generation_config = GenerationConfig(eos_token_id=generation_eos)
    tokenizer = rig.byte_tokenizer()
    tokenizer.eos_token = None if tokenizer_eos is None else tokenizer.convert_ids_to_tokens(tokenizer_eos)
    assert end_ids(model, tokenizer) == ends


def test_stops_at_any_end_mark_and_leaves_it_out(rig):
    tokenizer = rig.byte_tokenizer()
    model = rig.chain_model(chain("ok!", end=7) | {7: ord("?"), ord("?"): ord("?")})
    model.generation_config.eos_token_id = [2, 7]
    stats = GenerationStats()
    assert "".join(stream(model, tokenizer, "a\n", stats=stats)) == "ok!"
    assert (stats.stop_reason, stats.new_tokens) == ("stop", 3)
    text = "".join(
        stream(model, tokenizer, "a\n", ignore_eos=True, max_new_tokens=6, stats=(stats := GenerationStats()))
    )
    assert (text, stats.stop_reason) == ("ok!\x07??", "length")


@pytest.mark.parametrize("text", ["😸 hi", "ñ", "한국"])
def test_stream_hands_out_whole_characters(rig, text):
    pieces = list(stream(rig.chain_model(chain(text)), rig.byte_tokenizer(), "x\n"))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)


def test_stop_string_ends_the_answer_before_it(rig):
    stats = GenerationStats()
    model = rig.chain_model(chain("abcdefgh"))
    assert "".join(stream(model, rig.byte_tokenizer(), "x\n", stop=["cde", "zz"], stats=stats)) == "ab"
    assert (stats.stop_reason, stats.new_tokens) == ("stop", 5)
    assert "".join(stream(model, rig.byte_tokenizer(), "x\n", stop="ghi")) == "abcdefgh"
    with pytest.raises(UnsupportedError, match="not a stop string"):
        stream(model, rig.byte_tokenizer(), "x\n", stop=[""])


def test_same_seed_same_text_alone_and_among_others(rig):
    model, tokenizer = rig.random_model(6), rig.byte_tokenizer()
    options = {"temperature": 1.5, "ignore_eos": True, "max_new_tokens": 16}
    alone = list(stream(model, tokenizer, "abc", seed=11, **options))
    mixed = [stream(model, tokenizer, "abc", seed=seed, **options) for seed in (11, 12, 11)]
    texts = ["", "", ""]
    for _ in range(40):
        for index, pieces in enumerate(mixed):
            texts[index] += next(pieces, "")
    assert texts[0] == texts[2] == "".join(alone)
    assert texts[1] != texts[0]


def test_generation_config_is_used_where_nothing_is_given(rig):
    model, tokenizer = rig.random_model(6), rig.byte_tokenizer()
    greedy = "".join(stream(model, tokenizer, "abc", max_new_tokens=20, ignore_eos=True))
    model.generation_config.do_sample = True
    model.generation_config.temperature = 3.0
    sampled = {"".join(stream(model, tokenizer, "abc", max_new_tokens=20, ignore_eos=True)) for _ in range(3)}
    assert len(sampled | {greedy}) == 4
    assert "".join(stream(model, tokenizer, "abc", max_new_tokens=20, ignore_eos=True, greedy=True)) == greedy


def test_long_prompt_is_refused_and_the_answer_ends_at_the_last_position(rig):
    model = rig.random_model(8, eos_token_id=None, max_position_embeddings=32)
    with pytest.raises(UnsupportedError, match="32"):
        generate_tokens(model, [1] * 32, max_new_tokens=1)
    stats = GenerationStats()
    assert len(list(generate_tokens(model, [1] * 30, max_new_tokens=50, stats=stats))) == 2
    assert stats.stop_reason == "context"


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([], {}),
        ([[1, 2], [3, 4]], {}),
        ([1], {"max_new_tokens": 0}),
        ([1], {"chunk_tokens": 0}),
        ([1], {"max_new_tokens": "9"}),
    ],
)
def test_bad_arguments_are_refused_at_the_call(rig, prompt, options):
    with pytest.raises(UnsupportedError):
        generate_tokens(rig.random_model(1), prompt, **{"max_new_tokens": 4, **options})


def test_closing_ends_the_work_at_once(rig):
    model = rig.random_model(7)
    steps, stats = [], GenerationStats()
    model.register_forward_pre_hook(lambda *_: steps.append(1))
    pieces = stream(model, rig.byte_tokenizer(), "abcdef", max_new_tokens=400, ignore_eos=True, stats=stats)
    assert not steps
    next(pieces)
    done = len(steps)
    pieces.close()
    assert (len(steps), stats.stop_reason) == (done, "closed")
    assert not torch.is_inference_mode_enabled()


def test_reading_a_stream_does_not_leave_inference_mode_on(rig):
    for _ in islice(generate_tokens(rig.random_model(7), [1, 2], max_new_tokens=5), 3):
        assert not torch.is_inference_mode_enabled()
        torch.ones(1, requires_grad=True).sum().backward()


def test_sampling_object_reaches_the_loop(rig):
    model = rig.random_model(6)
    runs = [list(generate_tokens(model, [1], max_new_tokens=12, sampling=Sampling(seed=seed))) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


CALLS = [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]


def test_messages_go_through_the_template(rig):
    tokenizer = rig.byte_tokenizer()
    conversation = Conversation(system="Be brief.")
    messages = conversation.ask("hi")
    decoded = tokenizer.decode(encode_messages(tokenizer, messages))
    assert decoded == "<|start|>system\nBe brief.<|end|>\n<|start|>user\nhi<|end|>\n<|start|>assistant\n"


def test_without_a_template_contents_are_joined(rig):
    tokenizer = rig.byte_tokenizer(chat_template=None)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]
    assert encode_messages(tokenizer, messages) == list(b"s\nu")


def test_parts_are_joined_and_tool_calls_keep_their_null():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    with_null = {"role": "assistant", "content": None, "tool_calls": CALLS}
    without = {"role": "assistant", "tool_calls": CALLS}
    answer = {"role": "tool", "tool_call_id": "1", "content": ""}
    checked = check_messages([{"role": "user", "content": parts}, with_null, without, answer])
    assert checked == [{"role": "user", "content": "ab"}, with_null, with_null, answer]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        5,
        None,
        "hi",
        ["hi"],
        [{"role": "banana", "content": "x"}],
        [{"content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": None}],
        [{"role": "assistant"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
    ],
)
def test_other_shapes_are_refused(messages):
    with pytest.raises(UnsupportedError):
        check_messages(messages)


@pytest.mark.parametrize(
    ("roles", "rendered"),
    [
        (["developer", "user"], [("system", "0"), ("user", "1")]),
        (["system", "developer", "user"], [("system", "0\n\n1"), ("user", "2")]),
        (["user", "developer"], [("user", "0"), ("system", "1")]),
        (["system", "user"], [("system", "0"), ("user", "1")]),
    ],
)
def test_developer_is_system_where_the_template_does_not_know_it(rig, roles, rendered):
    template = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    messages = [{"role": role, "content": str(index)} for index, role in enumerate(roles)]
    tokenizer = rig.byte_tokenizer(chat_template=template)
    expected = "".join(f"[{role}:{content}]" for role, content in rendered)
    assert tokenizer.decode(encode_messages(tokenizer, messages)) == expected
    knowing = rig.byte_tokenizer(chat_template=template + "{# developer #}")
    unchanged = "".join(f"[{role}:{index}]" for index, role in enumerate(roles))
    assert knowing.decode(encode_messages(knowing, messages)) == unchanged


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('roles must alternate') }}", "{{ lipsum.__globals__['os'].popen('x') }}"]
)
def test_a_template_that_refuses_or_reaches_out_is_an_error(rig, template):
    with pytest.raises(UnsupportedError, match="chat template"):
        encode_messages(rig.byte_tokenizer(chat_template=template), [{"role": "user", "content": "x"}])


def test_variables_reach_the_template_but_cannot_replace_it(rig):
    tokenizer = rig.byte_tokenizer(chat_template="{{ messages[0].content }}{{ mood }}{{ tools | length }}")
    messages = [{"role": "user", "content": "x"}]
    assert render_messages(tokenizer, messages, {"mood": "!", "tools": [{"a": 1}]}) == "x!1"
    for name in ("chat_template", "tokenize", "add_generation_prompt", "conversation", "messages", "tokenizer_kwargs"):
        with pytest.raises(UnsupportedError, match=name):
            render_messages(tokenizer, messages, {name: "x"})


def test_null_content_beside_calls_passes_a_template_that_reads_all_content(rig):
    tokenizer = rig.byte_tokenizer()
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    messages = [{"role": "user", "content": "x"}, call]
    tokenizer.chat_template = "{% for m in messages %}{{ '<' + m['content'] + '>' }}{% endfor %}"
    assert render_messages(tokenizer, messages) == "<x><>"
    tokenizer.chat_template = "{% for m in messages %}{{ raise_exception('no ' + m['role']) }}{% endfor %}"
    with pytest.raises(UnsupportedError, match="no user"):
        render_messages(tokenizer, messages)


def test_half_a_surrogate_pair_is_no_text(rig):
    with pytest.raises(UnsupportedError, match="surrogate pair"):
        encode_messages(rig.byte_tokenizer(), [{"role": "user", "content": "a\ud800"}])


def test_conversation_keeps_whole_turns_only():
    conversation = Conversation()
    conversation.ask("one")
    conversation.rollback()
    assert conversation.messages() == []
    conversation.ask("lost")
    conversation.ask("two")
    conversation.answer("2")
    conversation.rollback()
    assert [turn["content"] for turn in conversation.turns] == ["two", "2"]
    with pytest.raises(ValueError, match="open"):
        conversation.answer("again")
    conversation.system = "s"
    conversation.reset()
    assert conversation.messages() == [{"role": "system", "content": "s"}]
