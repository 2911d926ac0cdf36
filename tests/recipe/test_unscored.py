"""Law 12 on the whole line: a judge that fails now and then costs its episodes their scores and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from trivium.trace import Store

FILE = Path(__file__).parents[2] / "examples" / "agent.py"
FLAKY = '''

@dataclass(frozen=True)
class Flaky(Staff):
    """A judge that does not answer for every ninth person, and for every ninth attempt at the others."""

    def scorer(self, step):
        right = super().scorer(step)

        async def judge(episode):
            if sum(episode.id.encode()) % 9 == 0:
                raise ConnectionError("the judge is busy")
            return await right(episode)

        return judge
'''


def test_a_judge_that_fails_now_and_then_ends_no_run(tmp_path):
    (tmp_path / "flaky.py").write_text(FILE.read_text() + FLAKY)
    words = "train flaky.py:Flaky --out run --people 90 --sft-steps 8 --steps 3 --groups 4 --size 4 --eval-tasks 20 --workers 1"
    done = subprocess.run(
        [sys.executable, "-m", "trivium", *words.split()], capture_output=True, text=True, timeout=280, cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "episodes of the warm-up could not be scored: going on without them" in done.stdout + done.stderr
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    unscored = sum(event["metrics"]["episodes_unscored"] for event in events if event["kind"] == "rl")
    store = Store(tmp_path / "run" / "episodes.db")
    silent = [e.id for e in store.select("rl/") if not e.parent and not store.own_scores(e.id)]
    assert 0 < unscored == len(silent) and all(sum(id.encode()) % 9 == 0 for id in silent)
    result = json.loads((tmp_path / "run" / "results" / "rl.json").read_text())
    assert result["episodes_unscored"] == sum(sum(e.id.encode()) % 9 == 0 for e in store.select("eval/rl/")) > 0
