"""benchmarks/reading.py: a search shows how pages begin, its teacher opens those that it needs, and effort is told by hops."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from benchmarks.reading import FAULTS, HOPS, MEASURES, PERFECT, SPEAKERS, Pages, judge, of_hops, page_of, summary
from trivium.agents.search.recipe import NANO
from trivium.agents.search.teacher import Imperfection
from trivium.policy import Renderer, Scripted
from trivium.tasks.proof import says
from trivium.trace import Episode, Task


@pytest.fixture(scope="module")
def pages() -> Pages:
    return Pages(0)


def live(pages: Pages, tasks: list[Task], faults: Imperfection) -> list[Episode]:
    policy = Scripted(pages.script(tasks, faults, 0), Renderer.load(str(NANO)), name="script")

    async def all_of_them() -> list[Episode]:
        return [await pages.harness.run(task, policy) for task in tasks]

    return asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def perfect(pages) -> list[Episode]:
    return live(pages, pages.heldout[:24], PERFECT)


def test_a_search_shows_first_lines_and_a_page_opened_its_others(perfect):
    for made in (made for episode in perfect for made in episode.agent.calls):
        lines = [int(piece.source.rpartition(":")[2]) for piece in made.pieces if piece.ref]
        if made.name == "search_corpus":
            assert not any(lines)
        if made.name == "read_document":
            assert lines == list(range(1, len(lines) + 1))


def test_the_perfect_script_opens_what_it_must_and_no_more(pages, perfect):
    for episode in perfect:
        corpus, chain = pages.corpus_of(episode.task), episode.task.truth["chain"]
        begins = [corpus.read(page_of(link["doc"]))[0].line for link in chain]
        hidden = sum(not (says(line, x["subject"]) and says(line, x["object"])) for line, x in zip(begins, chain, strict=True))
        scores = asyncio.run(judge(pages.parts.judge)(episode))
        assert scores["reads"] == hidden and scores["f1"] == 1.0 and scores["answer_found"]


def test_not_all_questions_of_four_hops_fit_the_window_without_pruning(pages):
    tasks = [task for task in pages.heldout if task.truth["hops"] == 4][:12]
    found = {}
    for prune in (1.0, 0.0):
        episodes = live(pages, tasks, replace(PERFECT, prune=prune))
        found[prune] = [asyncio.run(judge(pages.parts.judge)(episode))["answer_found"] for episode in episodes]
    assert sum(found[1.0]) == len(tasks) and sum(found[0.0]) < len(tasks)


def test_the_teacher_forgets_and_so_reads_less(pages, perfect):
    reads = lambda episodes: sum(made.name == "read_document" for episode in episodes for made in episode.agent.calls)  # noqa: E731
    assert 0 < reads(live(pages, [episode.task for episode in perfect], FAULTS)) < reads(perfect)


def test_episodes_are_judged_by_the_recipes_reward_in_this_window(pages, perfect):
    found = asyncio.run(judge(pages.parts.judge)(perfect[0]))
    turns = max(0, found["turns"] - 2)
    assert found["reward"] == pytest.approx(2.0 - 0.06 * turns / (1 + turns / 2)) and found["turn_penalty"] == 0


def test_effort_is_told_by_hops_and_paired_by_question(pages, perfect):
    found = [asyncio.run(judge(pages.parts.judge)(episode)) for episode in perfect]
    tasks = [episode.task.id for episode in perfect]
    scores = {name: [one[name] for one in found] for name in MEASURES}
    more = scores | {"reads": [value + 1 for value in scores["reads"]]}
    run: dict = {
        name: {"policy": "", "tasks": tasks, "scores": scores, "sampling": {}}
        for name in (speaker.name for speaker in SPEAKERS)
    }
    run |= {"rl": run["rl"] | {"scores": more}, "hops": {episode.task.id: episode.task.truth["hops"] for episode in perfect}}
    told = summary([run])
    parts = [of_hops([run], "sft", hops).results[0].tasks for hops in HOPS]
    assert all(run["hops"][task] == hops for part, hops in zip(parts, HOPS, strict=True) for task in part)
    assert sorted(task for part in parts for task in part) == sorted(tasks)
    assert all(told["rl less sft"][str(hops)]["reads"] == [1.0, 1.0, 1.0] for hops in HOPS)
    assert all(told["rl_greedy less sft_greedy"][str(hops)]["reads"] == [0.0, 0.0, 0.0] for hops in HOPS)
