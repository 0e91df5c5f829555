import os
import sys
from pathlib import Path

import pytest

from ktitan.bench.confine import MemoryGroup, memory_group
from ktitan.bench.worker import Worker
from ktitan.errors import HardwareError, IoError

LIMIT = 48 << 20
HOLD = "import sys; data = bytearray(int(sys.argv[1]) << 20); print('held', flush=True); sys.stdin.readline()"


def groups_possible():
    try:
        with memory_group(LIMIT):
            return True
    except (HardwareError, IoError):
        return False


needs_groups = pytest.mark.skipif(not groups_possible(), reason="memory groups need root")


@needs_groups
@pytest.mark.parametrize(("megabytes", "line", "kills"), [(20, "held", 0), (90, "", 1)])
def test_a_process_is_held_to_the_limit(megabytes, line, kills):
    with memory_group(LIMIT) as group:
        command = [sys.executable, "-S", "-c", HOLD, str(megabytes)]
        with Worker(command, group, os.environ) as worker:
            assert worker.line() == line
        assert group.kills() == kills
        assert megabytes << 20 < group.peak_bytes() or kills
    assert not group.folder.exists()


def test_no_memory_controller(tmp_path):
    with pytest.raises(HardwareError, match=r"(?s)no memory controller.*as root"), memory_group(LIMIT, tmp_path):
        pass


@pytest.mark.parametrize("unified", [False, True])
def test_a_user_without_the_right(tmp_path, monkeypatch, unified):
    if unified:
        (tmp_path / "cgroup.subtree_control").write_text("cpu memory")
    else:
        (tmp_path / "memory").mkdir()
        (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712")

    def refuse(self, *_):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    message = r"(?s)Permission denied.*remedy: run it as root"
    with pytest.raises(HardwareError, match=message), memory_group(LIMIT, tmp_path):
        pass


def test_a_group_counts_kills_of_either_version(tmp_path):
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert MemoryGroup(tmp_path, LIMIT, True).kills() == 2
    assert MemoryGroup(tmp_path, LIMIT, False).kills() == 1
    assert MemoryGroup(tmp_path, LIMIT, True).peak_bytes() == 0
