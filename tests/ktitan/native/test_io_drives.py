"""Files on several drives are read at once: each drive has a queue of its own."""

import subprocess
import sys

import pytest

from support.io_rig import MODES
from support.throttled_drives import missing, throttled_drives

RATE = SIZE = 10 << 20
READ = """
import sys, time
from ktitan.native.io import IoEngine, huge_buffer, layout
mode, size, *paths = sys.argv[1:]
with IoEngine(mode) as engine:
    ranges = [(engine.add(path), 0, int(size)) for path in paths]
    buffer = huge_buffer(layout(ranges)[1])
    start = time.perf_counter()
    engine.read(ranges, buffer)
    print(time.perf_counter() - start, engine.counters()["direct_files"])
"""


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize("mode", MODES)
def test_two_drives_bring_at_once_what_one_brings_in_twice_the_time(native, repository, tmp_path, mode):
    with throttled_drives(tmp_path, 2, 32 << 20, RATE) as drives:
        files = [mount / name for mount in drives.mounts for name in "ab"]
        for file in files:
            file.write_bytes(b"x" * (SIZE // 2))
        subprocess.run(["sync"], check=True)

        def seconds(*paths):
            command = drives.command(sys.executable, "-P", "-c", READ, mode, SIZE // 2, *paths)
            done = subprocess.run(command, capture_output=True, check=True, text=True, cwd=repository)
            taken, direct = done.stdout.split()
            if int(direct) < len(paths):
                pytest.skip("a loop device that is read through the page cache")
            return float(taken)

        one, two = seconds(files[0], files[1]), seconds(files[0], files[2])
    assert one > 0.6 * SIZE / RATE and one > 1.7 * two
