"""What the keeper asks of Linux beyond the standard library."""

from __future__ import annotations

import subprocess
import sys

import pytest

STRAY = """
import os, subprocess, sys, time
from trivium.sandbox.keeper.kernel import adopt, end_strays

adopt()
ours = subprocess.Popen(["sleep", "600"])
parent = subprocess.Popen(["sh", "-c", "sleep 600 >/dev/null & echo $!"], stdout=subprocess.PIPE, text=True)
stray = int(parent.communicate()[0])
deadline = time.monotonic() + 60
found = set()
while left := end_strays({ours.pid}):
    found |= set(left)
    assert time.monotonic() < deadline
    time.sleep(0.01)
assert found == {stray} and not os.path.exists(f"/proc/{stray}") and ours.poll() is None
ours.kill()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the keeper is Linux' alone")
def test_what_a_dead_parent_leaves_is_ended_and_nothing_else_is():
    subprocess.run([sys.executable, "-c", STRAY], check=True, timeout=200)
