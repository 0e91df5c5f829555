"""Single checks on machines that are made up."""

import errno
import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ktitan.doctor import gpu, kernels, limits, storage
from ktitan.doctor.redact import Redactor
from ktitan.native import library
from ktitan.nvidia import Gpu

MOUNTS = r"""
22 1 0:21 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:22 / /data rw shared:1 - xfs /dev/sdb rw
24 23 0:23 / /data/my\040drive rw master:2 propagate_from:1 - nfs4 host:/x rw
25 22 0:24 / /database rw - zfs pool rw
26 22 0:25 / /data rw - btrfs /dev/sdc rw
broken line
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/x", "ext4"),
        ("/data/a/b", "btrfs"),
        ("/data/my drive/m", "nfs4"),
        ("/database", "zfs"),
        ("/databases", "ext4"),
    ],
)
def test_file_systems(place, kind):
    assert storage.file_system(Path(place), MOUNTS) == kind


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "available"),
        (errno.ENOSYS, "not in this kernel"),
        (errno.EPERM, "seccomp"),
        (errno.ENOMEM, "memory"),
        (errno.EMFILE, "Too many open files"),
    ],
)
def test_io_uring_answers_are_told_apart(monkeypatch, number, text):
    monkeypatch.setattr(storage, "io_uring_fault", lambda: number)
    found = storage._io_uring()
    assert text in found.value and (found.status == "ok") == (number is None) == (not found.remedy)


@pytest.mark.parametrize(
    ("number", "status", "text"),
    [
        (None, "ok", "works"),
        (errno.EINVAL, "warning", "refused: Invalid argument"),
        (errno.EACCES, "warning", "not tried: Permission denied"),
    ],
)
def test_direct_reads(monkeypatch, tmp_path, number, status, text):
    def read(file):
        assert file.stat().st_size == mmap.PAGESIZE
        if number:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(storage, "read_direct", read)
    found = storage._direct(tmp_path)
    assert (found.status, found.value, list(tmp_path.iterdir())) == (status, text, [])


def test_the_nearest_folder_that_is_there(tmp_path):
    assert storage._existing(tmp_path / "a/b/c") == tmp_path


def test_shell_limits():
    assert limits._locked(8 << 20, resource.RLIM_INFINITY).status == "warning"
    assert limits._locked(8 << 20, resource.RLIM_INFINITY).value == "8 MiB of unlimited"
    assert limits._locked(resource.RLIM_INFINITY, resource.RLIM_INFINITY).status == "ok"
    assert limits._files(256, 4096).status == "warning" and limits._files(1024, 4096).status == "ok"


def test_a_machine_of_files(tmp_path):
    meminfo = (
        "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\nSwapTotal: 2048 kB\nSwapFree: 1024 kB\nHugePages_Total: 7\n"
    )
    files = {
        "proc/meminfo": meminfo,
        "proc/cpuinfo": "processor: 0\nmodel name: Some CPU\nflags: avx2\n",
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/memory.max": "268435456\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    found = {each.name: each for each in limits.limits(tmp_path)}
    assert found["memory"].value == "1 GiB, 256 MiB available" and found["cgroup memory"].value == "256 MiB"
    assert found["cgroup cpu"].value == "1.5 CPUs" and found["swap"].value == "2 MiB, 1 MiB used"
    assert found["huge pages"].value == "transparent: never; reserved: 7" and found["huge pages"].status == "warning"
    assert found["numa nodes"].value == "unknown" and "Some CPU" in found["cpu"].value


@pytest.mark.parametrize(
    ("used", "built", "cap", "reason"),
    [
        ("avx512", "avx512", "", "the highest there is"),
        ("avx2", "avx512", "avx2", "KTITAN_CPU_ISA allows no more"),
        ("avx2", "avx2", "", "the highest that is built"),
        ("avx2", "avx512", "", "the highest of this processor"),
    ],
)
def test_why_an_instruction_set_computes(monkeypatch, used, built, cap, reason):
    monkeypatch.setenv("KTITAN_CPU_ISA", cap)
    assert kernels._isa_reason(used, built) == reason


def test_no_library_is_a_warning(monkeypatch):
    monkeypatch.setattr(library, "state", lambda: library.State(None, "not built: no C++ compiler"))
    found = kernels.kernels()[0]
    assert (found.status, found.value) == ("warning", "not built: no C++ compiler") and "numba" in found.remedy


def test_torch_that_cannot_use_the_gpu_or_be_imported(monkeypatch):
    monkeypatch.setattr(gpu, "visible_gpus", lambda: (Gpu(0, "NVIDIA H200", 140 << 30, 1 << 30, "9.0"),))
    monkeypatch.setattr(gpu, "driver_version", lambda: "580.1")
    monkeypatch.setattr(gpu, "nvrtc_version", lambda: None)
    monkeypatch.setattr(gpu, "probe_torch", lambda: {"cuda": None, "hip": None, "gpus": 0})
    found = {each.name: each for each in gpu.gpu()}
    assert found["gpu 0"].value == "NVIDIA H200, 140 GiB, 1 GiB free, compute capability 9.0"
    assert found["torch"].status == "warning" and found["nvrtc"].status == "warning"
    monkeypatch.setattr(gpu, "probe_torch", lambda: {"fault": "ImportError: libx.so"})
    assert gpu._torch(0).status == "error"

    def late():
        raise subprocess.TimeoutExpired("python", 60)

    monkeypatch.setattr(gpu, "probe_torch", late)
    assert gpu._torch(1).status == "warning"


def test_a_torch_that_does_not_load_is_reported(monkeypatch):
    monkeypatch.setattr(gpu, "_PROBE", "raise ImportError('libcudart.so.13: cannot open')")
    assert gpu.probe_torch() == {"fault": "ImportError: libcudart.so.13: cannot open"}
    assert sys.modules["torch"]  # only the other process failed


def test_homes_of_others_lose_their_names():
    hide = Redactor({"/root"}, {"root"}, {"box"}, set())
    assert hide("path /home/alice: ext4") == "path /home/<user>: ext4"
    assert hide("/home/alice/models, /Users/bob/x") == "/home/<user>/models, /Users/<user>/x"
    assert hide("/srv/home/models in /home") == "/srv/home/models in /home"


def test_redaction():
    hide = Redactor({"/home/al", "/"}, {"al", "torch"}, {"box", "box.lan", "x"}, {"sesame123"})
    assert hide("/home/al/x in /home/alice and /srv/al/al-2, al torch 2.13") == (
        "~/x in /home/<user> and /srv/<user>/<user>-2, al torch 2.13"
    )
    assert hide("at box.lan or box, sesame123, hf_0123456789 10.0.0.7 fe80::1:2:3 1.2.3") == (
        "at <host> or <host>, <secret>, <secret> <address> <address> 1.2.3"
    )
