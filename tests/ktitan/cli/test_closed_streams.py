"""Standard streams that are closed, as `<&-` and some daemons leave them."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("closed", "says"), [("<&-", "the prompt is empty"), (">&-", ""), ("2>&-", "")])
def test_a_closed_stream_is_no_fault(closed, says):
    arguments = ["-m", "nowhere"] if says else ["--help"]
    line = f'exec "$0" -m ktitan.cli.main "$@" {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == (2 if says else 0), done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
