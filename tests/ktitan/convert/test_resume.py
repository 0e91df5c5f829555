"""A conversion that ends early goes on, and what it makes has the same bits as that of one run."""

import contextlib
import errno
import os
import random
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from ktitan.cli.main import app
from ktitan.convert import convert_model, destination, writer
from ktitan.errors import BudgetError, IoError, UnsupportedError
from ktitan.weights.opening import open_source

from support.good_models import save_folder, small_llama
from support.tiny_tokenizer import tiny_tokenizer

KILLS = 20


def tree(folder):
    """Every file's bytes by its name, links followed."""
    return {
        str(Path(home, name).relative_to(folder)): Path(home, name).read_bytes()
        for home, _, names in os.walk(folder, followlinks=True)
        for name in names
    }


@contextlib.contextmanager
def counted(act):
    """Calls `act(number)` in the middle of each write, and before each sync and rename."""
    kept = writer._write_all, os.fsync, Path.replace, Path.symlink_to
    number = iter(range(1 << 30))

    def write(handle, data):
        half = len(data) // 2
        kept[0](handle, data[:half])
        act(next(number))
        kept[0](handle, data[half:])

    def before(function):
        def call(*arguments, **options):
            act(next(number))
            return function(*arguments, **options)

        return call

    writer._write_all, os.fsync = write, before(kept[1])
    Path.replace, Path.symlink_to = before(kept[2]), before(kept[3])
    try:
        yield
    finally:
        writer._write_all, os.fsync, Path.replace, Path.symlink_to = kept


def in_child(work):
    """Do `work` in a process of its own; the number of the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # OpenMP's threads are not there after a fork, and it would wait for them
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def signal_of(child):
    _, status = os.waitpid(child, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


@pytest.fixture(scope="module")
def reference(small, tmp_path_factory):
    """The tree of one run over two drives, and how many steps it has."""
    home = tmp_path_factory.mktemp("reference")
    steps = []
    with counted(steps.append):
        convert_model(small[0], home / "native", stripes=[home / "two"])
    return tree(home / "native"), len(steps)


def test_killed_at_random_moments(small, reference, tmp_path):
    wanted, steps = reference
    moments = sorted(random.sample(range(steps), min(KILLS, steps)))
    print("killed at", moments, "of", steps)
    for moment in moments:
        home = tmp_path / str(moment)
        home.mkdir()

        def convert(home=home):
            return convert_model(small[0], home / "native", stripes=[home / "two"])

        def killed(at, convert=convert):
            with counted(lambda number: number == at and os.kill(os.getpid(), signal.SIGKILL)):
                convert()

        assert signal_of(in_child(lambda at=moment, killed=killed: killed(at))) == signal.SIGKILL
        finished = (home / "native/model.ktitan.json").exists()
        if not finished:
            with pytest.raises(Exception, match=r"not finished|no weights|no such"):
                open_source(home / "native")
        if not finished and moment % 2:  # once more, on the way
            signal_of(in_child(lambda killed=killed: killed(random.randrange(steps))))
        convert()
        assert tree(home / "native") == wanted
        shutil.rmtree(home)


def test_killed_from_outside(small, reference, tmp_path):
    for number in range(3):
        home = tmp_path / str(number)
        home.mkdir()

        def convert(home=home):
            return convert_model(small[0], home / "native", stripes=[home / "two"])

        child = in_child(convert)
        deadline = time.monotonic() + 60
        while not (home / "native").exists():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(random.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        signal_of(child)
        convert()
        assert tree(home / "native") == reference[0]


def test_what_is_there_is_checked_before_it_is_trusted(small, reference, tmp_path):
    stop = RuntimeError("enough")

    def act(number):
        if number == reference[1] * 2 // 3:
            raise stop

    with pytest.raises(RuntimeError), counted(act):
        convert_model(small[0], tmp_path / "native", stripes=[tmp_path / "two"])
    files = sorted((tmp_path / "native").rglob("*.titan.safetensors"))
    assert files and not list((tmp_path / "native").rglob("*.titan.safetensors.part"))
    with files[0].open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    if len(files) > 1:
        files[-1].write_bytes(b"nonsense")
    seen = []
    made = convert_model(
        small[0], tmp_path / "native", stripes=[tmp_path / "two"], progress=lambda *step: seen.append(step)
    )
    assert tree(tmp_path / "native") == reference[0] and made.kept_bytes < made.nbytes
    assert {"check what is there", "convert"} == {name for name, _, _ in seen}
    assert seen[-1][1] == seen[-1][2] == made.nbytes - made.kept_bytes


def test_a_full_drive(small, reference, tmp_path):
    def act(number):
        if number == reference[1] // 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(IoError, match="No space left") as caught, counted(act):
        convert_model(small[0], tmp_path / "native", stripes=[tmp_path / "two"])
    assert "same command" in str(caught.value) and "free space" in str(caught.value)
    assert not list(tmp_path.rglob("*.part"))
    convert_model(small[0], tmp_path / "native", stripes=[tmp_path / "two"])
    assert tree(tmp_path / "native") == reference[0]


def test_room_is_looked_at_first(small, tmp_path, monkeypatch):
    monkeypatch.setattr(destination.shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    with pytest.raises(BudgetError, match=r"KiB are to be written, and 97\.7 KiB are free"):
        convert_model(small[0], tmp_path / "native")
    assert not list((tmp_path / "native").glob("*.titan.safetensors*"))


def test_what_is_not_ours_is_left_alone(small, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("dear")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnsupportedError, match=r"letter\.txt"):
        convert_model(small[0], tmp_path / "full")
    with pytest.raises(UnsupportedError, match=r"letter\.txt"):
        convert_model(small[0], tmp_path / "new", stripes=[tmp_path / "full"])
    with pytest.raises(UnsupportedError, match="no folder"):
        convert_model(small[0], tmp_path / "file")
    with pytest.raises(UnsupportedError, match="something else"):
        convert_model(small[0], small[0])
    for stripes in ([tmp_path / "a", tmp_path / "a"], [tmp_path / "new"], [tmp_path / "file"]):
        with pytest.raises(UnsupportedError, match=r"named twice|no folder"):
            convert_model(small[0], tmp_path / "new", stripes=stripes)
    assert os.listdir(tmp_path / "full") == ["letter.txt"]


def test_a_drive_that_is_not_mounted_is_not_made_up(small, tmp_path):
    with pytest.raises(UnsupportedError, match="no folder is above it"):
        convert_model(small[0], tmp_path / "new", stripes=[tmp_path / "mnt" / "drive"])
    assert not (tmp_path / "mnt").exists()


def test_another_source_or_other_stripes(small, tmp_path):
    def act(number):
        if number == 9:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError), counted(act):
        convert_model(small[0], tmp_path / "native")
    with pytest.raises(UnsupportedError, match=r"conversion of folder, which is not small\.gguf"):
        convert_model(small[1], tmp_path / "native")
    with pytest.raises(UnsupportedError, match="begun with 0 stripes"):
        convert_model(small[0], tmp_path / "native", stripes=[tmp_path / "two"])
    convert_model(small[0], tmp_path / "native")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "native").iterdir()}
    again = convert_model(small[0], tmp_path / "native")
    assert again.kept_bytes == again.nbytes
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "native").iterdir()} == before
    with pytest.raises(UnsupportedError, match="is not small"):
        convert_model(small[1], tmp_path / "native")


def test_two_at_once(small, tmp_path):
    def act(number):
        if number == 12:
            with pytest.raises(UnsupportedError, match="another ktitan convert"):
                convert_model(small[0], tmp_path / "native")

    with counted(act):
        convert_model(small[0], tmp_path / "native")


def test_memory_does_not_grow_with_the_model(tmp_path):
    """A source of 220 MB, most of it in two tables; what is kept is a piece of 16 MiB."""
    model = small_llama(hidden_size=512, vocab_size=50_000, intermediate_size=1024)
    save_folder(tmp_path / "tiny")
    model.config.save_pretrained(tmp_path / "large")
    tiny_tokenizer().save_pretrained(tmp_path / "large")
    save_file(dict(model.state_dict()), tmp_path / "large/model.safetensors")
    del model
    peaks = {}
    for name in ("tiny", "large"):
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        made = convert_model(tmp_path / name, tmp_path / f"{name}-native")
        peaks[name] = memory("VmHWM") - before
    assert made.nbytes > 200 << 20
    assert peaks["large"] - peaks["tiny"] < 48 << 20


def memory(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10


def test_the_command(small, tmp_path):
    words = ["convert", str(small[1]), str(tmp_path / "native"), "--stripe", str(tmp_path / "two")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "records in 6 files" in done.stdout and "/s" in done.stderr
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0 and "there before" in again.stdout
    wrong = CliRunner().invoke(app, ["convert", str(small[0]), str(tmp_path / "native")])
    assert wrong.exit_code == 2 and "remedy" in wrong.stderr
    plan = CliRunner().invoke(app, ["plan", str(tmp_path / "native"), "--device", "cpu"])
    assert plan.exit_code == 0 and "lm_head" in plan.stdout
