"""What comparing coder runs says of going on from a full window."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.coder.house import attempt
from trivium.agents.coder.comparison import WHOLE_TOKENS, CoderComparison, compaction
from trivium.agents.coder.recipe import Coder
from trivium.eval import Pool, Result
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.recipe.base import Suite


def pool(solved: list[float], **scores: list[float]) -> Pool:
    return Pool((Result("rl", [f"task{n}" for n in range(len(solved))], {"solved": solved, **scores}),))


def test_what_detectors_mark_is_a_score_of_its_own(renderer):
    comparison = CoderComparison(Coder(sandbox="local-unsafe"))
    read, wrong = (call(("read_file", {"path": path})) for path in ("cart.py", "none.py"))
    well, badly = (comparison.beside(attempt(renderer, *script, say("Done."))) for script in ([read], [read, wrong]))
    assert well.keys() <= set(comparison.metrics()) and not any(well.values())
    assert [name for name, marked in badly.items() if marked] == ["detector: broken calls"]


def test_failures_that_compaction_causes_are_counted_task_by_task():
    own = pool([0, 0, 1, 1], summaries=[2, 1, 0, 1], summary_tokens=[60, 40, 0, 20])
    numbers = compaction(own, pool([1, 0, 0, 1]))
    assert {name: each[0] for name, each in numbers.items()} == {"caused": 0.25, "spared": 0.25, "summaries": 1, "tokens": 30}


@pytest.mark.parametrize("way", ["own", "prompted"])
def test_a_summary_forgets_what_it_leaves_out_or_tells_wrong(way):
    recipe = Coder(grades=(6,), window=896, sandbox="local-unsafe", summary=way, eval_tasks=1)
    (task,), comparison, expert = recipe.tasks("heldout"), CoderComparison(recipe), recipe.ceiling(recipe.tasks("heldout"))

    def told(change):
        def speak(view):
            message = expert.script(view)
            text = str(message["content"])
            return {**message, "content": change(text)} if text.startswith("Summary:") else message

        return comparison.beside(asyncio.run(recipe.harness().run(task, Scripted(speak, recipe.renderer))))["forgot"]

    first, *_ = task.truth["facts"].values()
    assert told(lambda text: text) == 0
    assert told(lambda text: text.replace(first, f"{first}1")) == told(lambda text: text.replace(first, "")) == 1


def test_without_a_summary_there_is_no_length_of_one():
    assert math.isnan(compaction(pool([1], summaries=[0], summary_tokens=[0]), pool([1]))["tokens"][0])


@pytest.mark.parametrize("way", ["own", "prompted", "cut"])
def test_long_tasks_are_also_attempted_in_a_window_that_holds_them_whole(way):
    long = Coder(grades=(4, 6), window=896, sandbox="local-unsafe", summary=way, eval_tasks=6)
    comparison = CoderComparison(long)
    (name,) = {speaker.variant for speaker in comparison.speakers(Suite()) if speaker.variant}
    whole, own = comparison.variant(name, long.harness()), long.harness()
    assert whole.window.compaction is None and whole.window.budget == WHOLE_TOKENS > own.window.budget
    assert list(whole.tools) == list(own.tools) and whole.prompt == own.prompt and whole.place is own.place
    tasks = long.tasks("heldout")
    episodes = [asyncio.run(whole.run(task, long.ceiling(tasks))) for task in tasks]
    assert all(episode.agent.stop.reason == "finished" and len(episode.agent.segments) == 1 for episode in episodes)
    short = [Coder(grades=grades) for grades in ((0,), (2, 6), (5, 6))]
    assert not any(speaker.variant for each in short for speaker in CoderComparison(each).speakers(Suite()))
