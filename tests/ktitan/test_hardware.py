"""`detect` on this machine and on machines made of files."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from ktitan import hardware
from ktitan.hardware import UNKNOWN, Cpu, Gpu, Memory, detect, detect_cpu, detect_gpus, detect_memory

MIB = 1 << 20
CPUINFO = "\n".join(
    f"processor : {n}\nmodel name : Chip\nphysical id : 0\ncore id : {n // 2}\nflags : sse2 avx2\n" for n in range(8)
)
MEMINFO = (
    "MemTotal:  4096 kB\nMemFree:  1024 kB\nMemAvailable:  3072 kB\nBuffers: 64 kB\nCached: 512 kB\nHugePages: 7\n"
)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/cpuinfo").write_text(CPUINFO)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (tmp_path / "sys/fs/cgroup/job").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def six_cpus_allowed(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3, 4, 5})


def test_this_machine():
    found = detect()
    assert 1 <= found.cpu.usable_cpus <= found.cpu.logical_cpus
    assert 1 <= found.cpu.physical_cores <= found.cpu.logical_cpus
    assert 0 < found.memory.available_bytes <= found.memory.total_bytes
    assert len(found.gpus) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)


def test_importing_and_detecting_without_gpus_leaves_torch_alone():
    code = "import sys, ktitan.hardware as h; h.detect(gpus=False); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.usefixtures("six_cpus_allowed")
@pytest.mark.parametrize(("quota", "usable"), [("max 100000", 6), ("250000 100000", 3), ("1000 100000", 1)])
def test_usable_cpus_are_the_mask_under_the_quota_rounded_up(root, quota, usable):
    (root / "sys/fs/cgroup/job/cpu.max").write_text(quota)
    assert detect_cpu(root) == Cpu("Chip", frozenset({"sse2", "avx2"}), 4, 8, usable)


def test_without_proc_the_package_is_asked(tmp_path, monkeypatch):
    features = {"AES": True, "num_physical_cores": 3, "num_virtual_cores": 6}
    monkeypatch.setitem(sys.modules, "cpufeature", SimpleNamespace(CPUFeature=features))
    found = detect_cpu(tmp_path)
    assert (found.isa, found.physical_cores, found.logical_cpus) == ({"aes"}, 3, 6)


def test_an_unknown_processor_still_counts_one_core(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cpufeature", None)
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert detect_cpu(tmp_path) == Cpu(UNKNOWN, frozenset(), 1, 1, 1)


def test_has_wants_every_flag():
    cpu = Cpu("x", frozenset({"avx2", "fma"}), 1, 1, 1)
    assert cpu.has("avx2", "fma")
    assert not cpu.has("avx2", "avx512f")


def test_memory_without_a_limit(root):
    assert detect_memory(root) == Memory(4 * MIB, 3 * MIB, None)


def test_available_respects_the_limit_less_what_cannot_be_dropped(root):
    group = root / "sys/fs/cgroup/job"
    (group / "memory.max").write_text(str(2 * MIB))
    (group / "memory.current").write_text(str(MIB))
    (group / "memory.stat").write_text(f"inactive_file {MIB // 4}\nactive_file {MIB // 4}\n")
    assert detect_memory(root) == Memory(4 * MIB, 3 * MIB // 2, 2 * MIB)


def test_available_is_the_machine_s_when_the_limit_is_wider(root):
    (root / "sys/fs/cgroup/job/memory.max").write_text(str(64 * MIB))
    assert detect_memory(root) == Memory(4 * MIB, 3 * MIB, 64 * MIB)


def test_the_tightest_limit_is_reported_and_the_tightest_room_is_available(root):
    parent, group = root / "sys/fs/cgroup", root / "sys/fs/cgroup/job"
    (group / "memory.max").write_text(str(2 * MIB))
    (parent / "memory.max").write_text(str(3 * MIB))
    (parent / "memory.current").write_text(str(3 * MIB - 4096))
    assert detect_memory(root) == Memory(4 * MIB, 4096, 2 * MIB)


def test_kernels_without_memavailable(root):
    (root / "proc/meminfo").write_text(MEMINFO.replace("MemAvailable:  3072 kB\n", ""))
    assert detect_memory(root).available_bytes == (1024 + 64 + 512) * 1024


def test_without_meminfo_sysconf_is_asked(tmp_path, monkeypatch):
    pages = {"SC_PHYS_PAGES": 100, "SC_AVPHYS_PAGES": 40, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    assert detect_memory(tmp_path) == Memory(409600, 163840, None)


def test_a_system_that_knows_nothing(tmp_path, monkeypatch):
    def refuse(name):
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", refuse)
    assert detect_memory(tmp_path) == Memory(0, 0, None)


def test_gpus_only_when_torch_can_use_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert detect_gpus() == ()


def test_a_gpu_that_fails_is_left_out_with_a_warning(monkeypatch, caplog):
    def mem_get_info(index):
        if index == 0:
            raise RuntimeError("device is in exclusive use")
        return 5, 8

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _index: (9, 0))
    assert detect_gpus() == (Gpu(1, "GPU 1", 8, 5, (9, 0)),)
    assert "exclusive use" in caplog.text


def test_without_torch_there_are_no_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert detect_gpus() == ()


def test_detect_puts_the_parts_together(monkeypatch):
    gpu = Gpu(0, "g", 2, 1, (8, 9))
    monkeypatch.setattr(hardware, "detect_gpus", lambda: (gpu,))
    assert detect().gpus == (gpu,)
    assert detect(gpus=False).gpus == ()
