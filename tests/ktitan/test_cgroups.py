"""Limits read from fake `/proc` and cgroup trees, v1 and v2, bare and as containers show them."""

from __future__ import annotations

import pytest

from ktitan.cgroups import MemoryLimit, cpu_quota, memory_limits

MIB = 1 << 20
V1_NONE = str((1 << 63) - 4096)


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    return root


def v2_mount(group="/"):
    return f"31 23 0:28 {group} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"


def v1_mount(controllers, group="/"):
    return f"32 31 0:29 {group} /sys/fs/cgroup/{controllers} rw,relatime - cgroup cgroup rw,{controllers}"


def stat(inactive, active, prefix=""):
    return f"anon 99\n{prefix}inactive_file {inactive}\n{prefix}active_file {active}"


def test_v2_own_limit_without_file_cache(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job",
            "proc/self/mountinfo": v2_mount(),
            "sys/fs/cgroup/user.slice/job/memory.max": 800 * MIB,
            "sys/fs/cgroup/user.slice/job/memory.current": 500 * MIB,
            "sys/fs/cgroup/user.slice/job/memory.stat": stat(150 * MIB, 50 * MIB),
        },
    )
    assert memory_limits(tmp_path) == [MemoryLimit(800 * MIB, 500 * MIB)]


def test_v2_parents_bind_and_max_is_none(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b/c",
            "proc/self/mountinfo": v2_mount(),
            "sys/fs/cgroup/a/b/c/memory.max": "max",
            "sys/fs/cgroup/a/b/memory.max": 700 * MIB,
            "sys/fs/cgroup/a/b/memory.current": 100 * MIB,
            "sys/fs/cgroup/a/memory.max": 900 * MIB,
            "sys/fs/cgroup/other/memory.max": 1 * MIB,
        },
    )
    assert memory_limits(tmp_path) == [MemoryLimit(700 * MIB, 600 * MIB), MemoryLimit(900 * MIB, 900 * MIB)]


def test_v2_throttling_limit_counts(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job",
            "proc/self/mountinfo": v2_mount(),
            "sys/fs/cgroup/job/memory.max": 800 * MIB,
            "sys/fs/cgroup/job/memory.high": 600 * MIB,
        },
    )
    assert memory_limits(tmp_path) == [MemoryLimit(600 * MIB, 600 * MIB)]


def test_v2_container_sees_its_group_as_the_root(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": v2_mount(),
            "sys/fs/cgroup/memory.max": 512 * MIB,
            "sys/fs/cgroup/memory.current": 600 * MIB,
            "sys/fs/cgroup/cpu.max": "150000 100000",
        },
    )
    assert memory_limits(tmp_path) == [MemoryLimit(512 * MIB, 0)]
    assert cpu_quota(tmp_path) == 1.5


def test_v1_total_cache_and_huge_root_limit(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/jobs/x\n4:memory:/jobs/x\n1:name=systemd:/\n0::/",
            "proc/self/mountinfo": "\n".join([v1_mount("memory"), v1_mount("cpu,cpuacct")]),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_NONE,
            "sys/fs/cgroup/memory/jobs/x/memory.limit_in_bytes": 400 * MIB,
            "sys/fs/cgroup/memory/jobs/x/memory.usage_in_bytes": 300 * MIB,
            "sys/fs/cgroup/memory/jobs/x/memory.stat": stat(7, 7) + "\n" + stat(60 * MIB, 40 * MIB, "total_"),
            "sys/fs/cgroup/cpu,cpuacct/jobs/x/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu,cpuacct/jobs/x/cpu.cfs_period_us": 100000,
            "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us": 250000,
            "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us": 100000,
        },
    )
    assert memory_limits(tmp_path) == [MemoryLimit(400 * MIB, 200 * MIB)]
    assert cpu_quota(tmp_path) == 2.5


@pytest.mark.parametrize("inner", ["", "/worker"])
def test_v1_container_with_host_paths(tmp_path, inner):
    write(
        tmp_path,
        {
            "proc/self/cgroup": f"4:memory:/docker/abc{inner}",
            "proc/self/mountinfo": v1_mount("memory", "/docker/abc"),
            f"sys/fs/cgroup/memory{inner}/memory.limit_in_bytes": 300 * MIB,
        },
    )
    assert memory_limits(tmp_path) == [MemoryLimit(300 * MIB, 300 * MIB)]


def test_hybrid_reads_the_hierarchy_that_has_the_controller(tmp_path):
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/deep\n0::/",
            "proc/self/mountinfo": "\n".join([v1_mount("memory"), unified]),
            "sys/fs/cgroup/memory/deep/memory.limit_in_bytes": 200 * MIB,
            "sys/fs/cgroup/unified/cgroup.procs": 1,
        },
    )
    assert memory_limits(tmp_path) == [MemoryLimit(200 * MIB, 200 * MIB)]


@pytest.mark.parametrize("version", [1, 2])
def test_usual_places_without_mountinfo(tmp_path, version):
    own, folder, name = {
        1: ("4:memory:/x", "memory/x", "memory.limit_in_bytes"),
        2: ("0::/x", "x", "memory.max"),
    }[version]
    write(tmp_path, {"proc/self/cgroup": own, f"sys/fs/cgroup/{folder}/{name}": 100 * MIB})
    assert memory_limits(tmp_path) == [MemoryLimit(100 * MIB, 100 * MIB)]


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/x"},
        {"proc/self/cgroup": "nonsense", "proc/self/mountinfo": "1 2 3\n - cgroup2\n"},
        {"proc/self/cgroup": "0::/x", "sys/fs/cgroup/x/memory.max": "", "sys/fs/cgroup/x/cpu.max": "max 100000"},
        {"proc/self/cgroup": "0::/x", "sys/fs/cgroup/x/memory.max": "lots", "sys/fs/cgroup/x/cpu.max": "5"},
        {"proc/self/cgroup": "0::/../../up", "proc/self/mountinfo": v2_mount(), "sys/up/memory.max": 5},
    ],
)
def test_odd_trees_mean_no_limit(tmp_path, files):
    write(tmp_path, files)
    assert memory_limits(tmp_path) == []
    assert cpu_quota(tmp_path) is None
