"""GPUs without torch: what nvidia-smi prints, and what is left without it."""

from ktitan.nvidia import Gpu, driver_version, visible_gpus

LISTED = """0, NVIDIA H200, 143771, 143120, 9.0, 5, 16
1, NVIDIA GeForce GT 710, 2002, [N/A], [Not Supported], [N/A], 8
garbage
"""


def program(folder, text):
    path = folder / "smi"
    path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    path.chmod(0o755)
    return str(path)


def proc(root):
    for address, model in (("0000:01:00.0", "NVIDIA H200"), ("0000:02:00.0", "NVIDIA L4")):
        folder = root / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   16\n", "utf-8")
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n"
    (root / "proc/driver/nvidia/version").write_text(version, "utf-8")
    return root


def test_what_nvidia_smi_lists(tmp_path):
    command = program(tmp_path, f"cat <<'END'\n{LISTED}END")
    assert visible_gpus(tmp_path, command) == (
        Gpu(0, "NVIDIA H200", 143771 << 20, 143120 << 20, "9.0", "gen 5 x16"),
        Gpu(1, "NVIDIA GeForce GT 710", 2002 << 20, None, None),
    )


def test_names_from_proc_where_nvidia_smi_is_missing_or_fails(tmp_path):
    root = proc(tmp_path)
    named = (Gpu(0, "NVIDIA H200"), Gpu(1, "NVIDIA L4"))
    assert visible_gpus(root, "no-such-program") == named
    assert visible_gpus(root, program(tmp_path, "echo 0, x; exit 9")) == named
    assert driver_version(root) == "570.86.15"


def test_no_gpu_at_all(tmp_path):
    assert visible_gpus(tmp_path, "no-such-program") == ()
    assert driver_version(tmp_path) is None
