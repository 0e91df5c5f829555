"""Processor facts from texts of x86, Arm and odd kernels, from sysfs and from the `cpufeature` package."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from ktitan.cpuinfo import (
    Cache,
    CpuFacts,
    caches,
    cpufeature_facts,
    last_level_cache_bytes,
    numa_nodes,
    parse_cpuinfo,
    sysfs_cores,
)


def x86_block(processor, socket, core, flags="fpu sse2 avx2 avx512f"):
    return (
        f"processor\t: {processor}\nmodel name\t: Made Up(R) CPU @ 2.00GHz\nphysical id\t: {socket}\n"
        f"core id\t\t: {core}\nflags\t\t: {flags}\nbugs\t\t: some\n"
    )


def test_x86_counts_threads_cores_and_sockets():
    # Two sockets of two cores with two threads each: core numbers repeat between the sockets.
    places = [(socket, core) for socket in (0, 1) for core in (0, 1) for _ in (0, 1)]
    text = "\n".join(x86_block(number, *place) for number, place in enumerate(places))
    facts = parse_cpuinfo(text)
    assert facts.name == "Made Up(R) CPU @ 2.00GHz"
    assert (facts.physical_cores, facts.logical_cpus) == (4, 8)
    assert facts.isa == {"fpu", "sse2", "avx2", "avx512f"}


def test_flags_are_those_of_every_processor():
    text = x86_block(0, 0, 0, "sse2 avx2 avx512f") + "\n" + x86_block(1, 0, 1, "sse2 avx2")
    assert parse_cpuinfo(text).isa == {"sse2", "avx2"}


def test_arm_has_features_and_no_cores_or_name():
    block = "processor\t: {}\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd asimddp SVE\nCPU implementer\t: 0x41\n"
    text = "\n".join(block.format(number) for number in range(3))
    assert parse_cpuinfo(text) == CpuFacts("", frozenset({"fp", "asimd", "asimddp", "sve"}), 0, 3)


@pytest.mark.parametrize("text", ["", "\n\n", "garbage without colons", ":::\n: x\nflags"])
def test_nonsense_is_unknown(text):
    assert parse_cpuinfo(text) == CpuFacts()


def test_sysfs_counts_sibling_sets(tmp_path):
    for cpu, siblings in enumerate(["0,4", "1,5", "2", "3", "0,4", "1,5"]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert sysfs_cores(tmp_path) == 4
    assert sysfs_cores(tmp_path / "nowhere") == 0


def test_last_level_cache_adds_up_core_complexes(tmp_path):
    def cache(cpu, index, level, size, shared):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{text}\n")

    for cpu in range(4):
        cache(cpu, 0, 1, "32K", cpu)
        cache(cpu, 2, 2, "1M", cpu)
        cache(cpu, 3, 3, "32768K", "0-1" if cpu < 2 else "2-3")
    assert last_level_cache_bytes(tmp_path) == 64 << 20
    assert caches(tmp_path) == [
        Cache(1, "unified", 32 << 10, 4),
        Cache(2, "unified", 1 << 20, 4),
        Cache(3, "unified", 32 << 20, 2),
    ]
    assert last_level_cache_bytes(tmp_path / "nowhere") == 0


def test_numa_nodes(tmp_path):
    assert numa_nodes(tmp_path) == 0
    for name in ("node0", "node1", "possible"):
        (tmp_path / "sys/devices/system/node" / name).mkdir(parents=True)
    assert numa_nodes(tmp_path) == 2


def use_package(monkeypatch, **features):
    monkeypatch.setitem(sys.modules, "cpufeature", SimpleNamespace(CPUFeature=features))


def test_package_names_become_linux_flags(monkeypatch):
    use_package(
        monkeypatch,
        **{"VendorId": "X", "num_virtual_cores": 8, "num_physical_cores": 4, "num_cpus": 0, "OS_x64": True},
        **{"OS_AVX": True, "OS_AVX512": True, "SSE3": True, "SSE4.1": True, "SSE4.a": False, "FMA3": True},
        **{"AVX2": True, "AVX512f": True, "AVX512vnni": True, "SHA": True, "cache_line_size": 64},
    )
    facts = cpufeature_facts()
    assert facts.isa == {"pni", "sse4_1", "fma", "avx2", "avx512f", "avx512_vnni", "sha_ni"}
    assert (facts.physical_cores, facts.logical_cpus) == (4, 8)


@pytest.mark.parametrize(
    ("system", "expected"),
    [({"OS_AVX": True, "OS_AVX512": False}, {"avx2", "fma", "aes"}), ({"OS_AVX": False}, {"aes"})],
)
def test_wide_registers_that_the_system_does_not_save_are_not_there(monkeypatch, system, expected):
    use_package(monkeypatch, AVX2=True, AVX512f=True, FMA3=True, AES=True, **system)
    assert cpufeature_facts().isa == expected


def test_without_the_package_nothing_is_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "cpufeature", None)
    facts = cpufeature_facts()
    assert (facts.isa, facts.physical_cores, facts.logical_cpus) == (frozenset(), 0, 0)
