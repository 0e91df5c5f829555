"""The drives of a known speed that striping is measured on: held back, each by itself, and gone afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.throttled_drives import missing, throttled_drives

RATE = 20 << 20
READ = """
import mmap, os, sys, threading, time
def read(path):
    handle, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
    for offset in range(0, os.fstat(handle).st_size, 1 << 20):
        os.preadv(handle, [buffer], offset)
threads = [threading.Thread(target=read, args=(path,)) for path in sys.argv[1:]]
start = time.perf_counter()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(time.perf_counter() - start)
"""


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_two_drives_read_at_once_what_one_reads_in_twice_the_time(tmp_path):
    with throttled_drives(tmp_path, 2, 48 << 20, RATE) as drives:
        files = []
        for mount in drives.mounts:
            files += [mount / "a", mount / "b"]
        for file in files:
            file.write_bytes(b"x" * (10 << 20))
        subprocess.run(["sync"], check=True)

        def seconds(*paths):
            run = subprocess.run(drives.command(sys.executable, "-c", READ, *paths), capture_output=True, check=True)
            return float(run.stdout)

        one, two = seconds(files[0], files[1]), seconds(files[0], files[2])
    assert one > 0.6 * (20 << 20) / RATE and one > 1.6 * two
    assert not list(tmp_path.glob("*.image"))
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    attached = subprocess.run(["losetup", "--list", "--noheadings", "--output", "BACK-FILE"], capture_output=True)
    assert str(tmp_path).encode() not in attached.stdout
