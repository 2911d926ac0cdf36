"""When the line keeps a checkpoint."""

from __future__ import annotations

import json

import pytest

from examples.agent import Staff
from trivium.recipe import line


@pytest.mark.parametrize("patience, kept", [(0.0, [("rl", 1), ("rl", 2)]), (3600.0, [("sft", 1), ("rl", 2)])])
def test_a_step_that_takes_long_is_kept_before_the_tenth(patience, kept, tmp_path, monkeypatch):
    monkeypatch.setattr(line, "PATIENCE", patience)
    line.train(Staff(out=str(tmp_path / "run"), people=90, sft_steps=1, steps=2, groups=1, size=2, eval_tasks=1, workers=1))
    states = [json.loads(path.read_text())["user"] for path in sorted((tmp_path / "run/checkpoints").glob("*/state.json"))]
    assert [(state["stage"], state["step"]) for state in states] == kept
