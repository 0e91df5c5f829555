"""The chat itself: turns, what an interrupt leaves behind, and the commands that begin with a slash."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from rich.console import Console

from ktitan.errors import KtitanError
from ktitan.local_chat.options import ChatOptions
from ktitan.local_chat.prompt_bar import PromptBar
from ktitan.local_chat.reader import Reader
from ktitan.local_chat.streaming import Watch, block, short_text

__all__ = ["Session", "kept_line", "summary_line"]

HELP = '''\
/reset         forget the conversation; the system prompt stays
/stats         speed of the last answer and of the session, bytes per tier, what was streamed
/system TEXT   set the system prompt for the answers to come; without TEXT: show it
/help          this list
/quit          leave (also Ctrl-D, or Ctrl-C twice)
"""            begin a question of several lines; """ ends it
Ctrl-C         end the answer; what was written of it stays in the conversation'''
COMMAND = re.compile(r"/[a-z]+(?=\s|$)")
INTERRUPTED = 130
ENDS = {"length": "ended at --max-new-tokens", "context": "the context is full: /reset, or a larger --context"}


class Session:
    """One conversation with one model: answers go to stdout, all else to `console`.

    An answer that Ctrl-C ends stays in the history as far as it was written; a question that was interrupted before
    any text, or refused, is dropped.
    """

    def __init__(self, model: Any, tokenizer: Any, options: ChatOptions, console: Console) -> None:
        from ktitan.api import Conversation, GenerationStats, PromptCache

        self._model = model
        self._tokenizer = tokenizer
        self._options = options
        self._console = console
        self._new_stats: Callable[[], Any] = GenerationStats
        self._last, self._total = GenerationStats(), GenerationStats()
        self._watch: Watch | None = None  # of the last answer
        self.conversation = Conversation(system=options.system)
        # One conversation: what it leaves behind when it goes another way is of no use.
        self._prompt_cache = PromptCache(model, most_prompts=1) if options.prompt_cache else None
        if not tokenizer.chat_template:
            self._note("the model has no chat template: messages are joined and continued as plain text")

    def run_once(self, text: str) -> int:
        """Answer one prompt; the exit code."""
        return 0 if self.turn(text) else INTERRUPTED

    def run(self, reader: Reader) -> int:
        """Answer questions until the user leaves; the exit code."""
        self._note("/help lists the commands")
        interrupts = 0
        while interrupts < 2:
            try:
                text = reader.read()
                interrupts = 0
                if text is None:
                    self._console.print()
                    return 0
                if not self._handle(text):
                    return 0
            except KeyboardInterrupt:
                interrupts += 1
                self._console.print()
                if interrupts < 2:
                    self._note("Ctrl-C once more, Ctrl-D or /quit leaves")
        return INTERRUPTED

    def _handle(self, text: str) -> bool:
        """Act on one entry; False when the user wants to leave."""
        if COMMAND.match(text):
            return self._command(text)
        if text.strip():
            try:
                self.turn(text.strip())
            except KtitanError as error:
                self._console.print(str(error))
        return True

    def turn(self, text: str) -> bool:
        """Answer `text`; False when Ctrl-C ended the answer.

        Raises:
            KtitanError: the question is refused; it is not in the history.
        """
        self._last = self._new_stats()
        self._watch, watch = None, Watch(self._model.ktitan)
        written: list[str] = []
        try:
            self._write_answer(self.conversation.ask(text), written, watch)
            finished = True
        except KeyboardInterrupt:
            finished = False
        except KtitanError:
            self.conversation.rollback()
            sys.stdout.write("\n" if written else "")
            raise
        watch.end()
        self._watch = watch
        self._close_turn("".join(written), finished, watch)
        return finished

    def _write_answer(self, messages: list[dict[str, Any]], written: list[str], watch: Watch) -> None:
        from ktitan.api import context_tokens, stream

        def see_prompt(done: int, total: int) -> None:
            watch.see_prompt(done, total)
            bar.show(done, total)

        with (
            PromptBar(self._console) as bar,
            closing(
                stream(
                    self._model,
                    self._tokenizer,
                    messages,
                    stats=self._last,
                    on_prompt=see_prompt,
                    prompt_cache=self._prompt_cache,
                    context_tokens=context_tokens(self._model, self._options.context_tokens),
                    **self._options.stream,
                )
            ) as pieces,
        ):
            for piece in pieces:
                bar.close()
                written.append(piece)
                sys.stdout.write(piece)
                sys.stdout.flush()

    def _close_turn(self, answer: str, finished: bool, watch: Watch) -> None:
        sys.stdout.write("\n")
        sys.stdout.flush()
        if finished or answer:
            self.conversation.answer(answer)
        else:
            self.conversation.rollback()
        self._total.add(self._last)
        if not finished:
            kept = "the answer so far stays in the conversation" if answer else "the question is dropped"
            self._note(f"interrupted: {kept}")
        self._note(" | ".join(filter(None, (summary_line(self._last), short_text(watch.whole())))))
        if self._options.stats:
            self._show_streaming(watch)

    def _command(self, text: str) -> bool:
        """Run a slash command; False for the one that leaves."""
        name, _, argument = text.partition(" ")
        if name in ("/quit", "/exit"):
            return False
        actions: dict[str, Callable[[str], None]] = {
            "/reset": self._reset,
            "/stats": self._show_stats,
            "/system": self._set_system,
            "/help": lambda _: self._console.print(HELP),
        }
        action = actions.get(name)
        if action is None:
            self._note(f"{name} is no command; /help lists them (a space in front makes it a question)")
        else:
            action(argument.strip())
        return True

    def _reset(self, _: str) -> None:
        self.conversation.reset()
        self._note("the conversation is empty")

    def _set_system(self, text: str) -> None:
        if text:
            self.conversation.system = text
        self._note(f"system prompt: {self.conversation.system or '(none)'}")

    def _show_stats(self, _: str) -> None:
        from ktitan.api import format_bytes

        self._note(f"last answer: {summary_line(self._last)}")
        self._note(f"session: {summary_line(self._total)}; {len(self.conversation.turns)} messages in the conversation")
        for tier, size_bytes in self._model.ktitan.stats()["resident_bytes"].items():
            self._note(f"{tier}: {format_bytes(size_bytes)} resident")
        if self._watch is not None:
            self._show_streaming(self._watch)

    def _show_streaming(self, watch: Watch) -> None:
        self._note(kept_line(self._last))
        for line in block(watch, self._last):
            self._note(line)

    def _note(self, text: str) -> None:
        self._console.print(text, style="dim")


def summary_line(stats: Any) -> str:
    """Tokens and speeds of a `GenerationStats` in one line, and why it ended where that needs saying."""
    kept = f" (+ {stats.cached_tokens} kept)" if stats.cached_tokens else ""
    prefill = f"prefill {stats.prompt_tokens} tokens{kept}, {stats.prefill_tokens_per_second:.1f} tokens/s"
    decode = f"decode {stats.new_tokens} tokens, {stats.decode_tokens_per_second:.1f} tokens/s"
    end = ENDS.get(stats.stop_reason)
    return " | ".join(filter(None, (prefill, decode, end)))


def kept_line(stats: Any) -> str:
    """How much of the last prompt was not read again."""
    total = stats.prompt_tokens + stats.cached_tokens
    return f"prompt: {stats.cached_tokens} of {total} tokens kept from before, {stats.prompt_tokens} read"
