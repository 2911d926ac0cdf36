"""benchmarks/reading.py: a search shows how pages begin, and its script opens those that it needs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.reading import Reading, page_of
from tests.recipe.test_own_agent import trivium
from trivium.agents.search import comparison
from trivium.agents.search.comparison import SearchBench, SearchSuite
from trivium.agents.search.recipe import Search
from trivium.agents.search.teacher import Imperfection
from trivium.corpus import HashEmbedder
from trivium.errors import InputError
from trivium.harness import Window
from trivium.policy import Policy, Scripted
from trivium.tasks.proof import mentions
from trivium.trace import Episode, Task

FILE = Path(__file__).parents[2] / "benchmarks" / "reading.py"


@pytest.fixture(scope="module")
def agent() -> Reading:
    return Reading(warmup=48, steps=2, groups=4, eval_tasks=48)


def live(agent: Reading, tasks: list[Task], policy: Policy) -> list[Episode]:
    async def attempts() -> list[Episode]:
        harness = agent.harness()
        return [await harness.run(task, policy) for task in tasks]

    return asyncio.run(attempts())


@pytest.fixture(scope="module")
def perfect(agent) -> list[Episode]:
    return live(agent, agent.heldout_tasks[:24], agent.expert(agent.heldout_tasks))


def reads(episodes: list[Episode]) -> int:
    return sum(call.name == "read_document" for episode in episodes for call in episode.agent.calls)


def test_its_numbers_are_those_of_the_published_runs():
    agent = Reading()
    assert agent.room == Window(1280, soft=0.5, hard=0.85, reply=96) and agent.harness().limits.turns == 24
    assert (agent.results, agent.warmup, agent.sft_steps, agent.steps, agent.groups, agent.size) == (4, 1600, 120, 48, 16, 8)
    assert (agent.lr, agent.sft_lr, agent.branches, agent.out) == (4e-4, 1e-3, 4, "runs/reading")


def test_a_search_shows_first_lines_and_a_page_opened_its_others(perfect):
    for call in (call for episode in perfect for call in episode.agent.calls):
        lines = [int(piece.source.rpartition(":")[2]) for piece in call.pieces if piece.ref]
        if call.name == "search_corpus":
            assert not any(lines) and len(lines) <= 4
        if call.name == "read_document":
            assert lines == list(range(1, len(lines) + 1))


def test_the_perfect_script_opens_what_it_must_and_no_more(agent, perfect):
    for episode in perfect:
        corpus, chain = agent.corpus_of(episode.task), episode.task.truth["chain"]
        begins = [corpus.read(page_of(link["doc"]))[0].line for link in chain]
        hidden = sum(
            not (mentions(line, x["subject"]) and mentions(line, x["object"])) for line, x in zip(begins, chain, strict=True)
        )
        scores = asyncio.run(agent.judge()(episode))
        assert scores["reads"] == hidden and scores["f1"] == 1.0 and scores["answer_found"]
        turns = max(0, scores["turns"] - 2)
        assert scores["reward"] == pytest.approx(2.0 - 0.06 * turns / (1 + turns / 2)) and scores["turn_penalty"] == 0


def test_the_teacher_forgets_and_so_reads_less(agent, perfect):
    tasks = [episode.task for episode in perfect]
    lessons = Scripted(agent.script(tasks, Imperfection()), agent.renderer, name="teacher")
    assert 0 < reads(live(agent, tasks, lessons)) < reads(perfect)


def test_not_all_questions_of_four_hops_fit_the_window_without_pruning(agent):
    tasks = [task for task in agent.heldout_tasks if task.truth["hops"] == 4]
    bare = replace(agent, without="pruning")
    judged = [
        [asyncio.run(each.judge()(episode))["answer_found"] for episode in live(each, tasks, each.expert(tasks))]
        for each in (agent, bare)
    ]
    assert sum(judged[0]) == len(tasks) > sum(judged[1])


def test_a_corpus_of_which_nobody_knows_what_its_pages_state_is_refused(tmp_path):
    with pytest.raises(InputError, match="--corpus has no pages"):
        Reading(corpus=str(tmp_path), out=str(tmp_path / "run")).check()


def test_plain_search_is_given_the_same_pages_and_another_script_is_another_ceiling(agent, monkeypatch):
    monkeypatch.setattr(comparison, "open_embedder", lambda name: HashEmbedder())
    bench = agent.comparison().bench(SearchSuite(tasks=4))
    assert isinstance(bench, SearchBench)
    for task in bench.tasks:
        corpus = bench.corpus_of(task)
        assert all(len(corpus.read(page)) > 1 for page in task.truth["gold"]) and corpus.embedder is not None
    assert agent.comparison().expert_source() != Search().comparison().expert_source()


def test_it_is_trained_by_the_command_line(tmp_path):
    tiny = "--warmup 32 --sft-steps 1 --steps 1 --groups 2 --size 2 --branches 0 --eval-tasks 4 --workers 1".split()
    done = trivium("train", FILE, "--out", tmp_path / "run", *tiny)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["expert"]["f1"] == 1.0 and summary["expert"]["reads"] > 0 and summary["recipe"]["window"] == 1280
