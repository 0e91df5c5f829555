"""Images, audio and video in messages are refused by name, never dropped."""

import pytest

from ktitan.engine.conversation import Conversation, encode_messages
from ktitan.engine.generate import stream
from ktitan.errors import UnsupportedError

TEXT = {"type": "text", "text": "what is this?"}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_image", "image_url": "https://example.org/a.png"},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "video", "video": "a.mp4"},
        {"image": "a.png"},
        {"type": "text", "text": "a", "image": "a.png"},
    ],
    ids=str,
)
@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_parts_that_are_no_text(rig, part, template):
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": [TEXT, part]}]
    with pytest.raises(UnsupportedError, match="is not text") as caught:
        encode_messages(rig.byte_tokenizer(template), messages)
    assert caught.value.where == "messages[1].content[1]"
    assert "reads text only" in caught.value.remedy


@pytest.mark.parametrize("name", ["images", "image", "audio", "videos", "audio_url"])
def test_media_beside_the_text(rig, name):
    messages = [{"role": "user", "content": "what is this?", name: ["AA=="]}]
    with pytest.raises(UnsupportedError, match=f"'{name}' is not text") as caught:
        encode_messages(rig.byte_tokenizer(), messages)
    assert caught.value.where == f"messages[0].{name}"
    assert encode_messages(rig.byte_tokenizer(), [{**messages[0], name: None}])


def test_all_of_them_at_once_and_before_the_model_runs(rig):
    content = [TEXT, {"type": "image"}, {"type": "video"}]
    messages = [{"role": "user", "content": content, "images": ["x"]}, {"role": "guest", "content": "x"}]
    with pytest.raises(UnsupportedError) as caught:
        stream(rig.random_model(1), rig.byte_tokenizer(), messages)
    assert [fault.where for fault in caught.value.faults] == [
        "messages[0].images",
        "messages[0].content[1]",
        "messages[0].content[2]",
        "messages[1]",
    ]


def test_a_conversation_is_checked_too(rig):
    messages = Conversation().ask([TEXT, {"type": "image"}])
    with pytest.raises(UnsupportedError, match="'image' is not text"):
        encode_messages(rig.byte_tokenizer(), messages)


def test_words_about_images_are_text(rig):
    text = "<image> image_url: https://example.org/a.png"
    assert encode_messages(rig.byte_tokenizer(TEMPLATE), [{"role": "user", "content": text}]) == list(text.encode())
