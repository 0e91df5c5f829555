"""The chat as a process: keys on a real terminal, pipes, exit codes. What answers is `fake_api_chat.py`."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).with_name("fake_api_chat.py"))
CTRL_C, CTRL_D = "\x03", "\x04"
PATIENCE_SECONDS = 60


class Terminal:
    """The chat on a pseudo-terminal."""

    def __init__(self, *arguments, stdout="/dev/tty", term="dumb"):
        self.seen = ""
        self._read_up_to = 0
        self.process_id, self._terminal = pty.fork()
        if self.process_id == 0:
            shell = ["sh", "-c", 'exec "$@" >"$0"', stdout]
            os.execvp("env", ["env", f"TERM={term}", *shell, sys.executable, SCRIPT, *arguments])

    def expect(self, text):
        """Wait until `text` is on the screen, after what was expected before."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := self.seen.find(text, self._read_up_to)) < 0:
            assert time.monotonic() < deadline, f"{text!r} did not come; on the screen:\n{self.seen}"
            self._read()
        self._read_up_to = found + len(text)

    def _read(self):
        if select.select([self._terminal], [], [], 0.2)[0]:
            try:
                self.seen += os.read(self._terminal, 4096).decode(errors="replace").replace("\r", "")
            except OSError:
                time.sleep(0.05)

    def type(self, text):
        os.write(self._terminal, text.encode())

    def interrupt_at_prompt(self, before=""):
        """Ctrl-C once the line editor waits for keys: the prompt comes before, a signal in between is seen late."""
        deadline, waits = time.monotonic() + PATIENCE_SECONDS, 0
        while waits < 5:
            state = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()[0]
            waits = waits + 1 if state == "S" else 0
            assert time.monotonic() < deadline, "it never waits"
            time.sleep(0.1)
        self.type(before + CTRL_C)

    def exit_code(self):
        """Wait for the end of the process."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._read()
            ended, status = os.waitpid(self.process_id, os.WNOHANG)
            if ended:
                os.close(self._terminal)
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, f"still running; on the screen:\n{self.seen}"


def run(*arguments, stdin="", variables=(), cwd=None):
    command = ["env", *variables, sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=60, cwd=cwd)


def test_ctrl_c_ends_the_answer_only_and_the_next_turn_is_clean():
    chat = Terminal("--model_path", "m")
    chat.expect("/help lists the commands")
    chat.expect("> ")
    chat.type("slow\n")
    chat.expect("tick1")
    chat.type(CTRL_C)
    chat.expect("interrupted: the answer so far stays")
    chat.expect("> ")
    chat.type("next\n")
    chat.expect("<user:slow|assistant:tick0|user:next>")
    chat.expect("> ")
    chat.type("think\n")
    chat.expect("THINKING")
    chat.type(CTRL_C)
    chat.expect("the question is dropped")
    chat.expect("> ")
    chat.type("/reset\n")
    chat.expect("empty")
    chat.expect("> ")
    chat.type("again\n")
    chat.expect("<user:again>")
    chat.expect("> ")
    chat.interrupt_at_prompt("half a line")
    chat.expect("Ctrl-C once more")
    chat.expect("> ")
    chat.interrupt_at_prompt()
    assert chat.exit_code() == 130
    assert "Traceback" not in chat.seen


def test_a_long_prompt_shows_how_far_it_is_and_ctrl_c_ends_it():
    chat = Terminal("m", term="xterm")
    chat.expect("> ")
    chat.type("read\n")
    chat.expect("reading the prompt")
    chat.expect("/4096")
    chat.expect("tokens/s")
    chat.type(CTRL_C)
    chat.expect("the question is dropped")
    chat.expect("> ")
    chat.type("next\n")
    chat.expect("<user:next>")
    chat.expect("> ")
    chat.type(CTRL_D)
    assert chat.exit_code() == 0
    assert "Traceback" not in chat.seen


def test_a_long_prompt_is_silent_where_stderr_is_no_terminal():
    assert "reading" not in run("m", "-p", "read").stderr.decode()


def test_several_lines_system_prompt_refusal_and_ctrl_d():
    chat = Terminal("m", "--system", "Be brief.")
    chat.expect("> ")
    chat.type('"""one\n')
    chat.expect(". ")
    chat.type('two"""\n')
    chat.expect("<system:Be br|user:one\nt>")
    chat.expect("> ")
    chat.type("refuse\n")
    chat.expect("[UnsupportedError] refused")
    chat.expect("> ")
    chat.type("/system New.\n")
    chat.expect("system prompt: New.")
    chat.expect("> ")
    chat.type('"""lost' + "\n")
    chat.expect(". ")
    chat.interrupt_at_prompt()
    chat.expect("Ctrl-C once more")
    chat.type("last\n")
    chat.expect("<system:New.|user:one\nt|assistant:<syst|user:last>")
    chat.expect("> ")
    chat.type(CTRL_D)
    assert chat.exit_code() == 0


def test_answers_redirected_from_a_terminal_hold_no_prompts(tmp_path):
    chat = Terminal("m", stdout=str(tmp_path / "answers"))
    chat.expect("> ")
    chat.type("one\n")
    chat.expect("> ")
    chat.interrupt_at_prompt()
    chat.expect("Ctrl-C once more")
    chat.expect("> ")
    chat.type("two\n")
    chat.expect("> ")
    chat.type(CTRL_D)
    assert chat.exit_code() == 0
    assert (tmp_path / "answers").read_text() == "<user:one>\n<user:one|assistant:<user|user:two>\n"


def test_ctrl_c_while_loading_leaves_without_a_traceback():
    chat = Terminal("slow-load")
    chat.expect("LOADING")
    chat.type(CTRL_C)
    assert chat.exit_code() == 130
    assert "Traceback" not in chat.seen


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [(["m"], "hello\n"), (["m", "-p", "hello"], "ignored"), (["m", "--prompt_file", "FILE"], "ignored")],
)
def test_one_prompt_is_answered_and_only_the_answer_is_on_stdout(tmp_path, arguments, stdin):
    (tmp_path / "FILE").write_text("hello\n")
    ended = run(*arguments, stdin=stdin, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, b"<user:hello>\n")
    errors = ended.stderr.decode()
    assert "loaded m: 1024 B in" in errors
    assert "PLAN" in errors
    assert errors.count("tokens/s") == 2
    assert "\x1b" not in errors


def test_piped_text_is_one_prompt_with_its_lines_and_commands():
    assert run("m", stdin="/q\n2\n").stdout == b"<user:/q\n2>\n"


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        (["m", "-p", "refuse"], "", 2, "[UnsupportedError] refused\n  remedy: ask something else"),
        (["m", "-p", "break"], "", 1, "RuntimeError: a fault"),
        (["m"], "  \n", 2, "stdin: the prompt is empty"),
        (["-p", "x"], "", 2, "give MODEL once"),
        (["m", "--model-path", "n", "-p", "x"], "", 2, "give MODEL once"),
        (["m", "-p", "x", "--prompt_file", SCRIPT], "", 2, "not both"),
        (["m", "--prompt_file", "/nowhere/at/all"], "", 2, "does not exist"),
        (["m", "-p", "x", "--top_p", "7"], "", 2, "--top-p"),
        (["m", "-p", "x", "--plugin", "no_such.py"], "", 2, "no_such.py: no such file"),
        (["m", "-p", "x", "--plugin", "no.such.module"], "", 2, "no.such.module: no such module"),
        (["m", "--unknown"], "", 2, "--unknown"),
    ],
)
def test_errors_have_their_exit_code_and_leave_stdout_clean(arguments, stdin, code, message):
    ended = run(*arguments, stdin=stdin)
    assert ended.returncode == code, ended.stderr.decode()
    assert message in ended.stderr.decode()
    assert ended.stdout.strip() == b""
    assert ("Traceback" in ended.stderr.decode()) == (code == 1)


def test_a_reader_who_goes_away_is_no_error():
    command = f"'{sys.executable}' '{SCRIPT}' m -p long | head -1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60)
    assert ended.stdout == b"tick0 \n0\n"
    assert b"Error" not in ended.stderr


def test_text_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "prompt").write_bytes(b"caf\xe9")
    ended = run("m", "--prompt-file", str(tmp_path / "prompt"))
    assert ended.returncode == 2
    assert "[FormatError]" in ended.stderr.decode()


def test_plugin_runs_before_the_model_is_loaded(tmp_path):
    (tmp_path / "mine.py").write_text("import sys\nsys.stderr.write('PLUGIN\\n')\n")
    errors = run("m", "-p", "x", "--plugin", str(tmp_path / "mine.py")).stderr.decode()
    assert 0 <= errors.find("PLUGIN") < errors.find("loaded m")


def test_log_level_is_read_and_checked():
    ended = run("m", "-p", "x", variables=["KTITAN_LOG=loud"])
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert "KTITAN_LOG: 'LOUD' is not a log level" in ended.stderr.decode()
