"""Law 9, at length (`make slow`): a run killed ten times, whenever that hits, ends as an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time

import pytest

from tests.laws.test_same_run import command, end, finished


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_kills_at_random_moments_change_nothing(tmp_path):
    undisturbed = finished(tmp_path / "calm")
    out, rng = tmp_path / "killed", random.Random(0)
    for kill in range(10):
        process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(rng.uniform(5, 45))
        os.kill(process.pid, signal.SIGKILL)
        print(f"kill {kill + 1}: the run had {'ended' if process.wait() == 0 else 'not ended'}")
    assert finished(out) == undisturbed == end(out)
