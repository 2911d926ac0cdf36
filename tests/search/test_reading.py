"""benchmarks/reading.py: a search shows how pages begin, its teacher opens those that it needs, and effort is told by hops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.reading import FAULTS, HOPS, MEASURES, SPEAKERS, STEPS, Pages, judge, judge_at, of_hops, page_of, price, summary
from trivium.agents.search.recipe import NANO
from trivium.agents.search.teacher import Imperfection
from trivium.policy import Renderer, Scripted, View
from trivium.policy.message import Message
from trivium.policy.scripted import call
from trivium.tasks.proof import says
from trivium.trace import Episode, Task

NOTHING_WRONG = replace(Imperfection.none(), two_calls=0.0)
Turn = Callable[[Callable[[View], Message]], Callable[[View], Message]]


@pytest.fixture(scope="module")
def pages() -> Pages:
    return Pages(0)


def live(pages: Pages, tasks: list[Task], faults: Imperfection, turn: Turn = lambda speak: speak) -> list[Episode]:
    policy = Scripted(turn(pages.script(tasks, faults, 0)), Renderer.load(str(NANO)), name="script")

    async def all_of_them() -> list[Episode]:
        return [await pages.harness.run(task, policy) for task in tasks]

    return asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def perfect(pages) -> list[Episode]:
    return live(pages, pages.heldout[:24], NOTHING_WRONG)


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
        scores = asyncio.run(judge(episode))
        assert scores["reads"] == hidden and scores["f1"] == 1.0 and scores["answer_found"]


def test_the_teacher_forgets_and_so_reads_less(pages, perfect):
    reads = lambda episodes: sum(made.name == "read_document" for episode in episodes for made in episode.agent.calls)  # noqa: E731
    assert 0 < reads(live(pages, [episode.task for episode in perfect], FAULTS)) < reads(perfect)


def stutters(speak):
    """A prune says its first handle twice more and is a call like any other; a search's call is left open at first."""

    def stutter(view: View) -> Message:
        message = speak(view)
        asked = [each["function"] for each in message.get("tool_calls") or ()]
        if not any(said["role"] == "assistant" for said in view.messages):
            return {"role": "assistant", "content": '<tool_call>\n{"name": "search_corpus", "arguments": {"query": "'}
        if asked and asked[0]["name"] == "prune_chunks":
            kept = asked[0]["arguments"]["keep"]
            return call(("prune_chunks", {"keep": [*kept, kept[0], kept[0]]}))
        return message

    return stutter


def test_training_pays_for_handles_kept_twice_and_for_calls_that_cannot_be_read(pages, perfect):
    stuttered = live(pages, [episode.task for episode in perfect], NOTHING_WRONG, stutters)
    prunes = [sum(made.name == "prune_chunks" for made in episode.agent.calls) for episode in stuttered]
    assert not any(map(price, perfect)) and any(prunes)
    assert [price(episode) for episode in stuttered] == pytest.approx([min(0.5, 0.1 + 0.2 * count) for count in prunes])
    for episode in stuttered:
        told, trained = asyncio.run(judge(episode, beta=2.0)), asyncio.run(judge_at(STEPS - 1)(episode))
        assert trained["reward"] == pytest.approx(told["reward"] - price(episode)) and trained["price"] == price(episode)


def test_effort_is_told_by_hops_and_paired_by_question(perfect):
    found = [asyncio.run(judge(episode)) for episode in perfect]
    tasks = [episode.task.id for episode in perfect]
    scores = {name: [one[name] for one in found] for name in MEASURES}
    more = scores | {"reads": [value + 1 for value in scores["reads"]]}
    run: dict = {name: {"policy": "", "tasks": tasks, "scores": scores, "sampling": {}} for name in SPEAKERS}
    run |= {"rl": run["rl"] | {"scores": more}, "hops": {episode.task.id: episode.task.truth["hops"] for episode in perfect}}
    told = summary([run])
    parts = [of_hops([run], "sft", hops).results[0].tasks for hops in HOPS]
    assert all(run["hops"][task] == hops for part, hops in zip(parts, HOPS, strict=True) for task in part)
    assert sorted(task for part in parts for task in part) == sorted(tasks)
    assert all(told["rl less sft"][str(hops)]["reads"] == [1.0, 1.0, 1.0] for hops in HOPS)
    assert all(told["rl_greedy less sft_greedy"][str(hops)]["reads"] == [0.0, 0.0, 0.0] for hops in HOPS)
