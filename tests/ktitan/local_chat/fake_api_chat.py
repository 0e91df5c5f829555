"""Runs the terminal chat over an api without torch, so that tests of keys, pipes and exit codes start at once.

The answer to "slow" takes 20 seconds; to "think" it never begins; "read" is a long prompt; "refuse" is refused,
"break" is a fault; to anything else it is the text of all messages, so that the history can be read off the screen.
"""

import runpy
import sys
import time
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

from ktitan.engine.conversation import Conversation
from ktitan.errors import UnsupportedError


@dataclass
class Stats:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    prefill_tokens_per_second: float = 0.0
    decode_tokens_per_second: float = 0.0
    stop_reason: str = "stop"

    def add(self, other):
        self.prompt_tokens += other.prompt_tokens


def load(model, *, progress, **options):
    if model == "slow-load":
        sys.stderr.write("LOADING\n")
        time.sleep(20)
    for done_bytes in (0, 512, 1024):
        progress(done_bytes, 1024)
    loaded = SimpleNamespace(
        plan=SimpleNamespace(summary=lambda **_: "PLAN"),
        stats=lambda: {"resident_bytes": {"ram": 7}},
        store_stats=lambda: None,
    )
    return SimpleNamespace(ktitan=loaded), SimpleNamespace(chat_template="yes")


def stream(model, tokenizer, messages, *, stats, on_prompt, **options):
    question = messages[-1]["content"]
    if question == "refuse":
        raise UnsupportedError("refused", remedy="ask something else")
    return pieces(question, messages, on_prompt)


def pieces(question, messages, on_prompt):
    on_prompt(0, 4096)
    for chunk in range(1, 25 if question == "read" else 1):
        time.sleep(0.1)
        on_prompt(chunk * 64, 4096)
    if question == "break":
        raise RuntimeError("a fault")
    if question == "think":
        sys.stderr.write("THINKING\n")
        time.sleep(20)
    if question in ("slow", "long"):
        for number in range(400):
            yield f"tick{number} \n"
            time.sleep(0.05 if question == "slow" else 0)
    yield "<" + "|".join(f"{message['role']}:{message['content'][:5]}" for message in messages) + ">"


api = ModuleType("ktitan.api")
api.locate_model = lambda model, gguf_path=None: model
api.load, api.stream, api.Conversation, api.GenerationStats = load, stream, Conversation, Stats
api.PromptCache = lambda model, most_prompts: None
api.context_tokens = lambda model, asked: asked
api.format_bytes = lambda size: f"{size} B"
sys.modules["ktitan.api"] = api
runpy.run_module("ktitan.local_chat", run_name="__main__", alter_sys=True)
