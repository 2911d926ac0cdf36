"""Every example runs as a user would run it, and fits on a screen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SAYS = {"agent.py": "after RL: 9", "loop.py": "version 3: reward", "tool.py": "Prune(", "reward.py": "of it search"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example):
    assert len(example.read_text().splitlines()) < 64
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert SAYS[example.name] in done.stdout
