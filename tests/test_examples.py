"""Every example runs as a user would run it, and fits on a screen."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SAYS = {"loop.py": "version 3: reward", "tool.py": r"Prune\(", "reward.py": "of it search"}
LEARNED = 0.8  # the share of held-out questions that the trained agent answers, greedy; its log is right in four of ten


def test_an_agent_of_ones_own_learns_beyond_its_log(tmp_path):
    (agent,) = (path for path in EXAMPLES if path.name == "agent.py")
    command = [sys.executable, "-m", "trivium", "train", str(agent), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rl_greedy"]["reward"] > LEARNED and summary["paired"]["rl_minus_sft"]["reward"][1] > 0


@pytest.mark.parametrize("example", [path for path in EXAMPLES if path.name in SAYS], ids=lambda path: path.name)
def test_an_example_runs(example):
    assert len(example.read_text().splitlines()) < 64
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[example.name], done.stdout)
