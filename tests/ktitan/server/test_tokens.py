"""The bytes behind tokens, of byte-level and SentencePiece-like tokenizers."""

from ktitan.server.tokens import TokenBytes


def test_byte_level(rig):
    tokenizer = rig.byte_tokenizer()
    look = TokenBytes(tokenizer)
    assert b"".join(look.bytes_of(one) for one in range(256)) == bytes(range(256))
    assert look.text_of(258) == "<|end|>"
    assert look.text_of(ord("\n")) == "\n"
    assert look.text_of(0xE4) == "bytes:\\xe4"


def test_sentencepiece_like(rig):
    tokenizer = rig.spm_tokenizer()
    look = TokenBytes(tokenizer)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in ("▁Hi", "▁한국", "<0xF0>", "</s>")}
    assert [look.text_of(one) for one in ids.values()] == [" Hi", " 한국", "bytes:\\xf0", "</s>"]
