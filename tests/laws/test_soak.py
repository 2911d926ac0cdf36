"""Law 9, at length (`make slow`): a run killed ten times, whenever that hits, ends as an undisturbed one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from tests.laws.test_same_run import command, end, finished


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_kills_at_random_moments_change_nothing(tmp_path):
    undisturbed = finished(tmp_path / "calm")
    out, rng, hits = tmp_path / "killed", random.Random(0), 0
    while hits < 10:
        process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(rng.uniform(4, 22))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            hits += 1
        elif process.returncode == 0:  # it got to its end between two kills: judged, and begun anew
            assert end(out) == undisturbed
            shutil.rmtree(out)
        else:
            raise AssertionError(f"the run failed by itself after {hits} kills")
    assert finished(out) == undisturbed
