"""A byte-level tokenizer that needs no training and no network."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def tiny_tokenizer():
    """Ids 0 to 2 are pad, bos and eos; the printable bytes follow."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())[:128]
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", *characters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )
