"""Drives of a known speed: loop devices over files, each with an ext4, whose reads a control group holds back.

Only root can make them.

`python -P tests/support/throttled_drives.py MODEL.gguf` converts a model to one such drive and to two, and prints how
many times as fast two are.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

BLKIO = Path("/sys/fs/cgroup/blkio")
UNIFIED = Path("/sys/fs/cgroup/cgroup.subtree_control")


def missing():
    """Why such drives cannot be made here, or ""."""
    if os.geteuid() != 0:
        return "needs root"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices"
    if not (BLKIO / "blkio.throttle.read_bps_device").exists():
        unified = UNIFIED.exists() and "io" in UNIFIED.read_text().split()
        return "" if unified else "needs a control group that limits reads"
    return ""


@dataclass(frozen=True)
class Drives:
    mounts: list
    group: Path

    def command(self, *command):
        """`command`, started inside the group."""
        enter = 'echo $$ > "$0" && exec "$@"'
        return ["/bin/sh", "-c", enter, str(self.group / "cgroup.procs"), *map(str, command)]


@contextmanager
def throttled_drives(folder, count, size_bytes, bytes_a_second):
    """`count` drives of `size_bytes`; programs of the group read `bytes_a_second` from each; all is undone after."""
    with ExitStack() as stack:
        devices, mounts = [], []
        for number in range(count):
            device, mount = stack.enter_context(_drive(Path(folder) / f"drive{number}", size_bytes))
            devices.append(device)
            mounts.append(mount)
        group = stack.enter_context(_group(devices, bytes_a_second))
        yield Drives(mounts, group)


@contextmanager
def _drive(mount, size_bytes):
    image = mount.with_suffix(".image")
    mount.mkdir()
    with ExitStack() as undo:
        with image.open("wb") as file:
            file.truncate(size_bytes)
        undo.callback(image.unlink)
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-O", "^has_journal", image)
        device = _run("losetup", "--find", "--show", image).strip()
        undo.callback(_run, "losetup", "--detach", device)
        _run("mount", device, mount)
        undo.callback(_unmount, mount)
        yield Path(device), mount


def _unmount(mount):
    for _ in range(50):
        if subprocess.run(["umount", str(mount)], capture_output=True).returncode == 0:
            return
        time.sleep(0.1)
    _run("umount", "--lazy", mount)


@contextmanager
def _group(devices, bytes_a_second):
    old = (BLKIO / "blkio.throttle.read_bps_device").exists()
    group = (BLKIO if old else UNIFIED.parent) / f"ktitan-drives-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    try:
        for device in devices:
            number = os.stat(device).st_rdev
            name = f"{os.major(number)}:{os.minor(number)}"
            if old:
                (group / "blkio.throttle.read_bps_device").write_text(f"{name} {bytes_a_second}")
            else:
                (group / "io.max").write_text(f"{name} rbps={bytes_a_second}")
        yield group
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def _run(*command):
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


def main(source, ram="25%", rate=str(200 << 20), pairs="3"):
    """Convert `source` to one drive and to two, and compare them in turn, in a group that is held back."""
    size = Path(source).stat().st_size
    budget = str(int(size * float(ram[:-1]) / 100)) if ram.endswith("%") else ram
    ktitan = (sys.executable, "-P", "-m", "ktitan.cli.main")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        drives = stack.enter_context(throttled_drives(folder, 2, int(size * 1.8) + (64 << 20), int(rate)))
        first, second = drives.mounts
        _run(*ktitan, "convert", source, first / "one")
        _run(*ktitan, "convert", source, first / "two", "--stripe", second / "stripe")
        options = ("--ram", budget, "--tokens", "32", "--pairs", pairs, "--no-resident", "--json")
        peer = ("--peer", "ktitan", "--peer-model", first / "one")
        lines = _run(*drives.command(*ktitan, "bench", "stream", first / "two", *options, *peer)).splitlines()
    rows = [row for row in map(json.loads, lines) if "case" in row]
    for row in rows:
        print(json.dumps(row))
    print(f"two drives are {rows[0]['ratio_to_peer']:.2f} times as fast as one")


if __name__ == "__main__":
    main(*sys.argv[1:])
