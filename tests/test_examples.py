"""Every example runs as a user would run it, and fits on a screen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SAYS = {"agent.py": r"after RL: 9\d%", "loop.py": "version 3: reward", "tool.py": r"Prune\(", "reward.py": "of it search"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example):
    assert len(example.read_text().splitlines()) < 64
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[example.name], done.stdout)
