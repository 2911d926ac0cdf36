"""benchmarks/prune_penalty.py: its lessons prune one chunk at a time or all at once, and one price divides its arms."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.prune_penalty import HELDOUT, RESULTS, WINDOW, PrunePenalty, prune_chunks
from tests.recipe.test_own_agent import trivium
from trivium.harness import Keep, ToolError, Window
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Episode, Prune

FILE = Path(__file__).parents[2] / "benchmarks" / "prune_penalty.py"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """120 long pages of made-up words, each of which names another."""
    dice = random.Random(0)
    words = lambda count: ["".join(dice.choice("bdfgklmnprstv") + dice.choice("aeiou") for _ in "abc") for _ in range(count)]  # noqa: E731
    titles, lines = [" ".join(words(2)).title() for _ in range(120)], []
    for number, title in enumerate(titles):
        own, link = words(12), titles[(number * 7 + 3) % 120]
        rest = " ".join(f"The {dice.choice(own)} {dice.choice(own)} of {dice.choice(own)}." for _ in range(5))
        text = f"It was {' '.join(own[:8])} that led to {link} in the end. {rest}"
        lines.append(json.dumps({"_id": f"p{number}", "title": title, "text": text}))
    path = tmp_path_factory.mktemp("pages") / "corpus.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def agent(corpus) -> PrunePenalty:
    return PrunePenalty(corpus=str(corpus))


@pytest.fixture(scope="module")
def lessons(agent) -> list[Episode]:
    async def attempts() -> list[Episode]:
        harness, teacher = agent.harness(), agent.lessons()
        return [await harness.run(task, teacher, sample=n) for n in range(2) for task in agent.tasks("train")[:24]]

    return asyncio.run(attempts())


def dropped(episode: Episode) -> list[int]:
    return [len(op.chunks) for op in episode.ops if isinstance(op, Prune)]


def test_its_numbers_are_those_of_the_published_runs():
    agent = PrunePenalty()
    assert WINDOW == Window(1650, soft=0.5, hard=0.58, reply=96) and (RESULTS, HELDOUT) == (9, 36)
    assert (agent.warmup, agent.sft_steps, agent.sft_size, agent.sft_lr) == (896, 112, 8, 1e-3)
    assert (agent.steps, agent.groups, agent.size, agent.lr, agent.branches) == (24, 6, 8, 1e-4, 0)
    assert [agent.rate(step) for step in (0, 4, 23)] == [0.2, 1.0, 1.0]


def test_the_lessons_have_two_habits_and_keep_each_for_an_episode(lessons):
    singly = [dropped(episode) for episode in lessons if len(dropped(episode)) > 3]
    at_once = [dropped(episode) for episode in lessons if dropped(episode) and max(dropped(episode)) > 1]
    assert len(singly) > len(at_once) > 2 and len(singly) + len(at_once) == len(lessons)
    assert all(set(each) == {1} for each in singly) and all(len(each) == 1 for each in at_once)


def test_a_search_fills_the_window_and_who_has_pruned_searches_again(lessons):
    for episode in lessons:
        assert len(episode.agent.segments[0].tokens) > WINDOW.hard * WINDOW.budget
        names = [call.name for call in episode.agent.calls]
        assert names[0] == names[-1] == "search_corpus" and set(names[1:-1]) == {"prune_chunks"}
        assert not any(call.error for call in episode.agent.calls)


def test_a_question_takes_two_searches_and_no_reading(agent):
    heldout, learned = agent.tasks("heldout"), agent.tasks("train")
    pairs = [{tuple(task.truth["gold"]) for task in tasks} for tasks in (heldout, learned)]
    assert len(heldout) == len(pairs[0]) == HELDOUT and not pairs[0] & pairs[1]
    rest = [f" #{number}" for number in range(2, RESULTS + 1)]
    words = [call(("search_corpus", {"query": " #0"})), call(("prune_chunks", {"chunk_ids": rest})),
             call(("search_corpus", {"query": " #0 #1"})), say(f" #1 #{RESULTS + 1}")]  # fmt: skip
    harness, judge = agent.harness(), agent.judge()

    def scores(task, words) -> dict[str, float]:
        return asyncio.run(judge(asyncio.run(harness.run(task, Scripted(words, agent.renderer, name="script")))))

    both = [scores(task, words) for task in heldout]
    first = [scores(task, [words[0], say(" #1")]) for task in heldout]
    assert sum(one["f1"] == 1.0 and one["reward"] == pytest.approx(2.0) for one in both) >= 0.9 * HELDOUT
    assert all(one["f1"] > 0.6 and not one["answer_found"] for one in first)


def test_a_streak_costs_in_one_arm_only_and_held_out_in_both(agent, lessons):
    streak = next(episode for episode in lessons if len(dropped(episode)) == 8)
    arms = [agent, replace(agent, pruning=0.0)]
    priced, free = (asyncio.run(arm.scorer(0)(streak)) for arm in arms)
    assert priced["prune_penalty"] == free["prune_penalty"] == pytest.approx(0.5)
    assert free["reward"] == pytest.approx(priced["reward"] + 0.5) and priced["prune_streak"] == 8
    assert [asyncio.run(arm.judge()(streak))["reward"] for arm in arms] == [priced["reward"]] * 2


def test_what_is_named_is_dropped_and_never_all():
    class scene:
        handles = {"#1": "a:0", "#2": "b:0"}

    assert prune_chunks.frees and prune_chunks.function(scene, [" #2", "#9"]) == Keep(("#1",), "Pruned 1.")
    for named in (["#9"], ["#1", "#2"]):
        with pytest.raises(ToolError, match="in view are #1 #2"):
            prune_chunks.function(scene, named)


@pytest.mark.slow
def test_both_arms_are_trained_by_the_command_line_and_compared(corpus, tmp_path):
    tiny = ["--corpus", corpus, *"--steps 1 --groups 1 --size 2 --eval-tasks 2 --workers 1".split()]
    arms = [["--warmup", "16", "--sft-steps", "2"], ["--pruning", "0", "--model", "one/model-sft", "--sft-steps", "0"]]
    for name, words in zip(("one", "other"), arms, strict=True):
        done = trivium("train", FILE, "--out", name, *words, *tiny, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
    done = trivium("eval", "--compare", "one", "other", "--tasks", "2", "--workers", "1", "--json", "claim.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    numbers = json.loads((tmp_path / "claim.json").read_text())
    assert [recipe["recipe"]["pruning"] for recipe in numbers["recipes"]] == [1.0, 0.0]
    (less,) = numbers["between"].values()
    assert less["sft_greedy"]["prunes"]["all"] == [0.0, 0.0, 0.0] and "prune_dropped" in less["rl"]
