"""A run's folder belongs to one process at a time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trivium.errors import InputError
from trivium.loops import Run

HOLD = """
import sys
from trivium.loops import Run
run = Run.begin(sys.argv[1], {"seed": 0})
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="trained by another process"):
            Run.begin(tmp_path / "run", {"seed": 0})
        first.kill()
    Run.begin(tmp_path / "run", {"seed": 0})
