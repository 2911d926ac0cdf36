"""benchmarks/whole_loop.py: what TRL's side is given to replay is what our side did, and our side runs as a person runs it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.whole_loop import PHASES, recorded, total
from trivium import Harness, Limits, Scripted, Window
from trivium.agents.search import search_tools
from trivium.agents.search.teacher import Imperfection, Teacher
from trivium.agents.search.tools import BRIEF_UNPRUNED
from trivium.assets import NANO
from trivium.corpus import Corpus
from trivium.policy import Renderer
from trivium.tasks.world import World

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "whole_loop.py"


def test_a_recorded_episode_has_every_reply_after_its_text_and_every_call_with_its_result():
    world, renderer = World.make(seed=0), Renderer.load(NANO)
    tools = search_tools(Corpus.build(world.documents), pruning=False)
    harness = Harness(tools, Window(640, soft=0.5, hard=0.85, reply=96), BRIEF_UNPRUNED, Limits(turns=10), specs=False)
    tasks = world.tasks(4, hops=(2,))
    teacher = Scripted(Teacher(replace(Imperfection.none(), prune=0.0)).script(tasks), renderer)
    episode = asyncio.run(harness.run(tasks[0], teacher))
    found, text = recorded(episode, renderer), renderer.decode(episode.agent.segments[0].tokens)
    assert len(found["replies"]) == episode.agent.turns >= 2
    assert len(found["calls"]) == len(episode.agent.calls) >= 1
    for before, reply in found["replies"]:
        assert before.endswith("<|im_start|>assistant\n")
        assert text.startswith(before + renderer.decode(reply))
    for call, (name, arguments, result) in zip(episode.agent.calls, found["calls"], strict=True):
        assert (call.name, call.arguments) == (name, arguments)
        assert all(piece.text.strip() in result for piece in call.pieces)


def test_steps_of_the_warm_up_do_not_count_and_the_slower_process_sets_the_time():
    step = dict.fromkeys(PHASES, 1.0) | {"cpu_s": 3.0, "sampled": 40.0, "read": 200.0, "turns": 2.0}
    one, two = ([{**step, "wall_s": wall, "episodes": 8.0}] * 2 for wall in (2.0, 4.0))
    every = [[{**step, "wall_s": 100.0, "episodes": 8.0}, *steps] for steps in (one, two)]
    apart, shared = total(every), total(every, shared=True)
    assert apart["wall_s"] == 8.0 and apart["cpu_s"] == 12.0 and apart["turns"] == 2.0
    assert apart["episodes"] == 32 and apart["episodes_per_minute"] == 60 * 32 / 8
    assert shared["episodes"] == 16  # where each process counts for all


@pytest.mark.slow
def test_our_side_runs_without_trl():
    done = subprocess.run([sys.executable, str(SCRIPT), "--quick", "--json"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "TRL skipped: no --trl-python given" in done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["speedup_vs_trl"] is None and found["ours"]["episodes"] == 16
    assert 0 < found["ours"]["sampled"] < found["ours"]["read"]
