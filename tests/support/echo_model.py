"""A model without weights that says what it is told to, so that answers over HTTP can be scripted by their requests."""

import time
from types import SimpleNamespace

import torch
from transformers import GenerationConfig, LlamaConfig

START, END, NEWLINE = 257, 258, 10


class EchoModel(torch.nn.Module):
    """Answers a chat with its last message and the end mark; continues plain text with the next byte, up to "z".

    Its tokens are those of the byte-level test tokenizer. After the end mark (`ignore_eos`) it begins again. What the
    template writes after "assistant\\n" counts as said already.

    Attributes:
        seen: the sequence so far.
        delay: seconds that a forward pass takes.
        passes: tokens of each forward pass so far.
        fault: raised by the next forward pass, once.
    """

    def __init__(self, positions=4096, vocabulary=264):
        super().__init__()
        self.config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            max_position_embeddings=positions,
            eos_token_id=END,
        )
        self.generation_config = GenerationConfig(eos_token_id=END)
        self.device = torch.device("cpu")
        self.delay, self.passes, self.fault = 0.0, [], None
        self.seen = []

    def forward(self, input_ids, position_ids, past_key_values=None, use_cache=True, logits_to_keep=0):
        time.sleep(self.delay)
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault
        self.passes.append(input_ids.shape[1])
        self.seen[position_ids[0, 0] :] = input_ids[0].tolist()
        logits = torch.zeros(1, 1, self.config.vocab_size)
        logits[0, 0, following(self.seen)] = 9.0
        return SimpleNamespace(logits=logits)


def following(seen):
    """The token after `seen`: that of the script, in a chat."""
    starts = [place for place, token in enumerate(seen) if token == START]
    if len(starts) < 2:
        return END if seen[-1] == ord("z") else (seen[-1] + 1) % 256
    asked = seen[starts[-2] : starts[-1]]
    # The message lies between the line of its role and "<|end|>\n".
    script = [*asked[asked.index(NEWLINE) + 1 : -2], END] if NEWLINE in asked else [END]
    answer = seen[starts[-1] :]
    said = len(answer) - answer.index(NEWLINE) - 1 if NEWLINE in answer else 0
    return script[said % len(script)]
