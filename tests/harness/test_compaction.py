"""How a thread goes on from a full view: scratch and kept books with a summary, and the two baselines."""

from __future__ import annotations

import asyncio

import pytest

from tests.harness.test_summary import life, summaries, text, window
from tests.laws.walks import TASK, snapshots
from trivium.errors import InputError
from trivium.harness import SECTIONS, Harness, Oldest, Snapshot, Summary, Window, tool
from trivium.harness.compaction import summary_in
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Restart, Thread, rows
from trivium.train import CISPO, Batch, Group
from trivium.train.batch import lessons

LONG = call(("text", {"letters": 1000}))


def books(thread: Thread) -> list[str]:
    return [f"Calls so far: {len(thread.calls)}"]


def begun(renderer, episode, number: int) -> str:
    """What segment `number` begins with."""
    segment = episode.agent.segments[number]
    return renderer.decode(segment.tokens[: segment.carried])


def walk(renderer, way, *script, budget: int = 2000):
    return life(renderer, list(script), window=window(budget, way))[0]


def test_scratch_is_sampled_and_not_carried_over(renderer):
    reply = "The text was x's.\nI think aloud.\nSummary: it is x\nand long"
    episode = walk(renderer, 0.5, LONG, say(reply), say("#1"))
    assert summaries(episode) == 1
    assert "Your summary so far:\nit is x\nand long" in begun(renderer, episode, 1)
    assert "think aloud" not in begun(renderer, episode, 1) and "think aloud" in renderer.decode(
        episode.agent.segments[0].tokens
    )


def test_a_reply_of_scratch_alone_is_no_summary():
    assert summary_in("a\nSummary:\n ") == "" and summary_in("a\nb") == "a\nb"
    assert summary_in("Summary: one\nSummary: two") == "two", "the last one counts"
    assert summary_in("Not a Summary: one") == "Not a Summary: one"


def test_the_harness_keeps_its_own_books_behind_each_summary(renderer):
    half = call(("text", {"letters": 500}))
    script = (LONG, say("first"), half, half, say("second"), say("#1"))
    episode = walk(renderer, Summary(0.5, "Sum up.", books), *script)
    assert "Your summary so far:\nfirst\nCalls so far: 1\nSummaries so far: 1" in begun(renderer, episode, 1)
    assert "Your summary so far:\nsecond\nCalls so far: 3\nSummaries so far: 2" in begun(renderer, episode, 2)
    assert "first" not in begun(renderer, episode, 2)
    assert renderer.decode(episode.agent.segments[0].tokens).count("Sum up.") == 1


def test_a_branch_knows_how_many_summaries_came_before_it(renderer):
    taken: list[Snapshot] = []
    harness = Harness([text], window(1300, Summary(0.6, "Sum up.", books)), "Go.", specs=False)
    script = [LONG, say("first"), LONG, say("second"), say("#1")]
    parent = asyncio.run(harness.run(TASK, Scripted(script, renderer, "agent"), watch=snapshots(taken)))
    again = Scripted([LONG, say("other"), say("#2")], renderer, "agent")
    branch = asyncio.run(harness.branch(taken[1], parent, again, sample=1))
    assert "other\nCalls so far: 2\nSummaries so far: 2" in begun(renderer, branch, 1)


def test_every_sampled_token_of_the_chain_has_the_final_reward(renderer):
    """Composer 2: the reward of the end is credited to all that the policy said, summaries and scratch included."""
    one, two = [walk(renderer, 0.5, LONG, say(f"so far {n}"), say("#1")) for n in (1, 2)]
    two.id = "other"
    for episode in (one, two):
        for segment in episode.agent.segments:  # as if an engine had sampled it
            segment.logprobs = [0.0 if x != x else x for x in [-1.0] * len(segment.tokens)]
    every, _ = lessons(Batch([Group("walk", [one, two], [1.0, 0.0])]), CISPO(), {"agent"})
    said = [sum(s.stop - s.start for segment in e.agent.segments for s in segment.sampled()) for e in (one, two)]
    assert [lesson.trained for lesson in every] == said and all(len(lesson.rows) == 2 for lesson in every)
    assert every[0].advantage > 0 > every[1].advantage
    summary = rows(one, {"agent"})[0]
    assert "so far 1" in renderer.decode(summary.tokens[summary.mask].tolist())


def test_the_oldest_turns_are_cut_without_asking(renderer):
    turns = [call(("text", {"letters": 400 + n})) for n in range(4)]
    episode = walk(renderer, Oldest(0.9, keep=0.6), *turns, say("#1"))
    cuts = [op for op in episode.ops if isinstance(op, Restart)]
    assert [op.reason for op in cuts] == ["the oldest turns were cut"] and episode.agent.stop.reason == "finished"
    view = begun(renderer, episode, 1)
    assert TASK.prompt in view and '"letters": 402' in view and '"letters": 401' not in view
    assert episode.agent.segments[1].carried == cuts[0].after.position <= 0.6 * 2000 + 1
    assert sum(row.trained for row in rows(episode, {"agent"})) == sum(
        s.stop - s.start for segment in episode.agent.segments for s in segment.sampled()
    )


def test_a_last_turn_that_fills_the_window_alone_ends_there(renderer):
    episode = walk(renderer, Oldest(0.3, keep=0.2), call(("text", {"letters": 5000})), say("#1"), budget=700)
    assert episode.agent.stop.reason in ("window", "finished")
    assert len(episode.agent.segments) == 2 and max(len(s.tokens) for s in episode.agent.segments) <= 700


def test_the_long_request_asks_for_fixed_sections(renderer):
    episode = walk(renderer, Summary(0.4, SECTIONS), LONG, say("1. Request: x"), say("#1"), budget=4000)
    assert summaries(episode) == 0
    wide = Window(6000, soft=0.9, hard=1.0, reply=80, summarize=Summary(0.1, SECTIONS))
    episode, _ = life(renderer, [LONG, say("1. Request: x"), say("#1")], window=wide)
    assert summaries(episode) == 1 and "12. Next step" in renderer.decode(episode.agent.segments[0].tokens)


def test_a_tool_sees_the_calls_before_its_own(renderer):
    @tool
    def count(scene) -> str:
        """How many calls came before."""
        return f"{len(scene.calls)} before"

    harness = Harness([count], Window(2000), "Go.", specs=False)
    script = [call(("count", {}), ("count", {})), call(("count", {})), say("x")]
    episode = asyncio.run(harness.run(TASK, Scripted(script, renderer, "agent")))
    assert [made.pieces[0].text.split()[0] for made in episode.agent.calls] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "wrong", [lambda: Summary(0.5, " "), lambda: Oldest(0.5, keep=0.6), lambda: Window(900, summarize=Oldest(0.95))]
)
def test_what_cannot_be_meant_is_refused(wrong):
    with pytest.raises(InputError):
        wrong()


def test_a_plain_share_keeps_the_digest_of_older_runs():
    """A Summary with other words is another way of life; where its books come from cannot be written down."""
    digests = [
        Harness([], Window(900, summarize=way)).digest for way in (0.5, Summary(0.5), Summary(0.5, "Sum up."), Oldest(0.5))
    ]
    assert len(set(digests)) == 4
    assert Harness([], Window(900, summarize=Summary(0.5, state=books))).digest == digests[1]
