"""Ctrl-C in the middle of a download, as a terminal sends it."""

import json
import os
import signal
import subprocess
import sys
import time

from support.hub_rig import hub_variables, run_ktitan

PULL = [sys.executable, "-P", "-m", "ktitan.cli.main", "pull", "org/big"]


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ctrl_c_ends_soon_and_the_next_pull_brings_the_rest(hub):
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    files = {"a.safetensors": os.urandom(30_000), "b.safetensors": bytes(48 << 20)}
    hub.add("org/big", {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(), **files})
    hub.pause = 0.003  # the large file takes 9 seconds or more
    process = subprocess.Popen(PULL, env=hub_variables(hub), stderr=subprocess.PIPE, text=True)
    wait_for(
        lambda: list(hub.cache.glob("*/snapshots/*/a.safetensors")) and list(hub.cache.glob("*/blobs/*.incomplete"))
    )
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in errors
    assert time.monotonic() - started < 8
    assert not list(hub.cache.glob("*/snapshots/*/b.safetensors"))
    listed = json.loads(run_ktitan(hub, "list", "--json").stdout)
    assert listed == []  # its config names no model; what is listed as partial is tested elsewhere
    hub.pause = 0
    hub.asked()
    again = run_ktitan(hub, "pull", "org/big", "--json")
    assert json.loads(again.stdout)["downloaded_bytes"] == len(files["b.safetensors"])
    assert len([one for one in hub.asked("GET") if "storage" in one]) == 1
