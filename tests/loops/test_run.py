"""A run's folder belongs to one process at a time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trivium.errors import InputError
from trivium.loops import Run, run

HOLD = """
import sys
from trivium.loops import Run, run
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


def test_of_two_that_begin_at_once_one_is_refused(tmp_path, monkeypatch):
    """The second comes between the first's look at the folder and its first file."""
    write, refused = run.write_json, []

    def slow(path, value):
        monkeypatch.undo()
        with pytest.raises(InputError, match="trained by another process") as caught:
            Run.begin(tmp_path / "run", {"seed": 0})
        refused.append(caught)
        write(path, value)

    monkeypatch.setattr(run, "write_json", slow)
    Run.begin(tmp_path / "run", {"seed": 0}).close()
    assert refused and Run.open(tmp_path / "run").recipe() == {"seed": 0}
