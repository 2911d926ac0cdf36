"""benchmarks/concurrency.py and benchmarks/swarm.py do what they say."""

from __future__ import annotations

import asyncio
import dataclasses

from benchmarks.concurrency import MEMBERS, live, lost, measure
from benchmarks.swarm import ARMS, SCORES, differences, finished, means, page
from trivium.eval import Result
from trivium.loops import Run
from trivium.loops.run import write_json


def test_all_episodes_live_at_once_and_a_lost_one_is_counted(renderer):
    numbers = measure(8)
    assert (numbers["episodes"], numbers["sub_agents"], numbers["lost"]) == (8, 8 * MEMBERS, 0)
    episodes = asyncio.run(live(renderer, 2))
    episodes[1].threads.pop()
    assert lost(episodes) == 1


def run(folder, seed: int, split: float, f1: float) -> None:
    """A run that came to its end, with equal scores in all tasks."""
    it = Run.begin(folder, {"seed": seed})
    it.close()
    tasks = [f"{seed}-{n}" for n in range(4)]
    scores = {name: [split if "split" in name else f1 + n / 100 for n in range(4)] for name in SCORES}
    for policy in ("sft", "sft_greedy", "rl", "rl_greedy"):
        write_json(it.result(policy), dataclasses.asdict(Result("agent", tasks, scores, {})))
    write_json(it.folder / "summary.json", {})


def test_arms_are_paired_with_the_swarm_by_seed_and_task_and_only_where_they_ended(tmp_path):
    run(tmp_path / "swarm-0", 0, 1.0, 0.9)
    run(tmp_path / "swarm-1", 1, 1.0, 0.8)
    run(tmp_path / "alone-0", 0, 0.0, 0.6)
    run(tmp_path / "alone-2", 2, 0.0, 0.1)
    (tmp_path / "no-finish-0").mkdir()
    runs = {arm: finished(tmp_path, arm) for arm in ARMS}
    assert {arm: sorted(of) for arm, of in runs.items() if of} == {"swarm": [0, 1], "alone": [0, 2]}
    pairs = dict(differences(runs))
    assert pairs.keys() == {"sft", "alone"} and pairs["alone"]["seeds"] == [0] and pairs["sft"]["seeds"] == [0, 1]
    gain = pairs["alone"]["rl_greedy"]["wide/item_f1"]
    assert [round(value, 6) for value in gain["mean"]] == [0.3, 0.3, 0.3] and len(gain["by_seed"]) == 1
    text = page({"arms": {arm: means(of) for arm, of in runs.items() if of}, "swarm minus": pairs})
    assert "| a single agent | +0.300 [+0.300, +0.300] | +1.000 [+1.000, +1.000] |" in text
