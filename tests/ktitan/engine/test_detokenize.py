"""Pieces of text against the tokenizer's own decoding of the whole."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ktitan.engine.detokenize import KEPT_TOKENS, Detokenizer, StopStrings, detokenize

MARK = "\ufffd"
TEXTS = ("👨‍👩‍👧 family", "ñ and n\u0303", "한국 語", "plain words, two  spaces\n\n\ttab", "😸" * 30, "naïve ½ 🙂.")


def whole(tokenizer, ids, skip=True):
    return tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


def merged_tokenizer():
    """Byte-level BPE whose merges end inside characters, as those of large vocabularies do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["한국 語 日本 中文 😸🙂 naïve Ångström the cat"] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def wordpiece_tokenizer():
    vocabulary = {token: index for index, token in enumerate(("[UNK]", "un", "##aff", "##able", "hello", ",", "##s"))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


@pytest.fixture(scope="module", params=["bytes", "merged", "spm", "wordpiece"])
def tokenizer(request, rig):
    makers = {
        "bytes": rig.byte_tokenizer,
        "merged": merged_tokenizer,
        "spm": rig.spm_tokenizer,
        "wordpiece": wordpiece_tokenizer,
    }
    return makers[request.param]()


@pytest.mark.parametrize("skip", [True, False])
def test_random_ids_join_to_the_decoded_whole(tokenizer, skip):
    dice = random.Random()
    state = dice.getstate()
    for _ in range(150):
        ids = [dice.randrange(len(tokenizer)) for _ in range(dice.choice((1, 3, 17, 60)))]
        pieces = list(detokenize(tokenizer, ids, skip_special_tokens=skip))
        assert "".join(pieces) == whole(tokenizer, ids, skip), (ids, state)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_back_without_marks(rig, text):
    for tokenizer in (rig.byte_tokenizer(), merged_tokenizer()):
        pieces = list(detokenize(tokenizer, tokenizer(text)["input_ids"]))
        assert "".join(pieces) == text
        assert all(MARK not in piece for piece in pieces)


def test_a_character_leaves_with_its_last_byte(rig):
    detokenizer = Detokenizer(rig.byte_tokenizer())
    assert [detokenizer.push(byte) for byte in "😸!".encode()] == ["", "", "", "😸", "!"]
    assert detokenizer.finish() == ""


def test_a_bad_byte_is_one_mark_as_soon_as_it_is_certain(rig):
    detokenizer = Detokenizer(rig.byte_tokenizer())
    assert [detokenizer.push(byte) for byte in (0xF0, ord("a"), ord("b"))] == ["", MARK + "a", "b"]


def test_an_unfinished_character_is_flushed_at_the_end(rig):
    detokenizer = Detokenizer(rig.byte_tokenizer())
    assert [detokenizer.push(byte) for byte in (0xF0, 0x9F)] == ["", ""]
    assert detokenizer.finish() == MARK
    assert detokenizer.push(ord("x")) == "x"


def test_endless_bad_bytes_are_shown_and_cost_no_more_each(rig):
    detokenizer = Detokenizer(rig.byte_tokenizer())
    pieces = [detokenizer.push(0xFF) for _ in range(500)]
    assert pieces == ["", *[MARK] * 499]
    assert len(detokenizer._window) < 2 * KEPT_TOKENS
    assert detokenizer.finish() == MARK


@pytest.mark.parametrize("words", [(259, 260), (262, 262, 259), (262, 261), (1, 259, 2, 260)])
def test_the_leading_space_is_the_tokenizers_own(rig, words):
    tokenizer = rig.spm_tokenizer()
    assert "".join(detokenize(tokenizer, words)) == whole(tokenizer, words)


def test_byte_fallback_run_waits_for_its_end(rig):
    tokenizer = rig.spm_tokenizer()
    ids = [259, *(byte + 3 for byte in "😸".encode()), 261]
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(index) for index in ids] == ["Hi", "", "", "", "", "😸a"]
    bad = [259, 0xF0 + 3, 261]
    assert "".join(detokenize(tokenizer, bad)) == "Hi" + MARK + "a"


def test_special_tokens_neither_show_nor_pile_up(rig):
    detokenizer = Detokenizer(rig.byte_tokenizer())
    assert [detokenizer.push(index) for index in (256, *"한".encode()[:2], 258, "한".encode()[2])][-1] == "한"
    for _ in range(100):
        detokenizer.push(258)
    assert len(detokenizer._window) < 2 * KEPT_TOKENS


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "stopped"),
    [
        (["\nUser:"], ["hi\nUser", ":", "x"], "hi", True),
        (["ell"], ["hello"], "h", True),
        (["\nUser:"], ["hi\nUse"], "hi\nUse", False),
        (["ab", "abc"], ["xa", "bc"], "x", True),
        (["abcd", "bc"], ["abc", "d"], "a", True),
        (["abcd", "bc"], ["abcd"], "a", True),
        (["aab"], ["a", "a", "a", "b"], "a", True),
        ([], ["any", "thing"], "anything", False),
    ],
)
def test_stop_strings(stops, pieces, shown, stopped):
    filtered = StopStrings(stops)
    text = ""
    for piece in pieces:
        text += filtered.push(piece)
        if filtered.stopped:
            break
    assert (text + filtered.finish(), filtered.stopped) == (shown, stopped)


def test_stop_strings_do_not_depend_on_how_the_text_is_cut():
    dice = random.Random()
    for _ in range(300):
        text = "".join(dice.choice("ab") for _ in range(12))
        stops = ["".join(dice.choice("ab") for _ in range(dice.randint(2, 5))) for _ in range(2)]
        results = set()
        for size in (1, 2, 5, 12):
            filtered = StopStrings(stops)
            shown = ""
            for start in range(0, len(text), size):
                shown += filtered.push(text[start : start + size])
                if filtered.stopped:
                    break
            results.add(shown + filtered.finish())
        assert len(results) == 1, (text, stops, results)
