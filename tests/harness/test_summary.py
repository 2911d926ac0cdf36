"""A thread that summarizes itself: when it is asked to, and what becomes of a reply that is no summary."""

from __future__ import annotations

import asyncio

import pytest

from tests.harness.test_rough import Words, asks
from tests.laws.walks import TASK, keep, search, search_corpus
from trivium.agents.search.recipe import NANO
from trivium.errors import InputError
from trivium.harness import Harness, Window, prune_chunks, tool
from trivium.harness.compaction import REQUEST as SUMMARIZE
from trivium.policy import Renderer, Reply, Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Sampling, Summarize


@tool
def text(scene, letters: int) -> str:
    """A text of so many letters."""
    return "x" * letters


def window(budget: int = 2000, summarize: float = 0.5, **changes) -> Window:
    return Window(budget, **{"soft": 0.9, "hard": 1.0, "reply": 80, "summarize": summarize} | changes)


def life(renderer, script, *tools, window=window()):
    streams = []

    class Noting(Scripted):
        async def speak(self, view, sampling):
            streams.append(view.stream)
            return await super().speak(view, sampling)

    policy = Noting(script, renderer, "agent") if isinstance(script, list) else script
    harness = Harness([search_corpus, text, *tools], window, "Go.", specs=False)
    return asyncio.run(harness.run(TASK, policy)), streams


def summaries(episode) -> int:
    return sum(isinstance(op, Summarize) for op in episode.ops)


def requests(renderer, episode) -> int:
    return sum(renderer.decode(segment.tokens).count(SUMMARIZE) for segment in episode.agent.segments)


def test_the_results_of_a_turn_count_before_the_next_one(renderer):
    episode, _ = life(renderer, [call(("text", {"letters": 300})), say("so far"), say("#1")])
    assert summaries(episode) == 0 and episode.agent.answer == "so far"
    episode, _ = life(renderer, [call(("text", {"letters": 1300})), say("so far"), say("#1")])
    assert summaries(episode) == 1 and episode.agent.answer == "#1"


def test_a_result_too_long_makes_room_by_a_summary(renderer):
    """The view is short of the share and the result does not fit: it is cut, a summary makes room, and it can be had whole."""
    half, long = call(("text", {"letters": 600})), call(("text", {"letters": 1300}))
    episode, _ = life(renderer, [half, long, say("nothing yet"), long, say("more"), say("#1")])
    _, cut, whole = episode.agent.calls
    assert not cut.error and "tokens left out" in cut.pieces[0].text
    assert whole.pieces[0].text == "x" * 1300 + "\n" and summaries(episode) == 2 and episode.agent.stop.reason == "finished"


def test_what_a_prune_frees_needs_no_summary(renderer):
    full = window(1200, 0.6)
    turns = [call(search()), call(search()), call(search(), keep("#2")), say("#2")]
    episode, _ = life(renderer, turns, prune_chunks, window=full)
    assert summaries(episode) == 0 and episode.agent.stop.reason == "finished"
    assert sum(s.start for s in episode.agent.segments[0].sampled()[-1:]) < 0.6 * 1200 < len(episode.agent.segments[0].tokens)
    without, _ = life(renderer, [call(search()), call(search()), call(search()), say("so far"), say("#2")], window=full)
    assert summaries(without) == 1


CUT_OFF = Reply(message=say("so far I kn"), complete=False)
BAD = {
    "it called a tool": Reply(message=call(search(), ("text", {"letters": 5}), text="so far")),
    "it was cut off": CUT_OFF,
    "it was empty": Reply(message=say(" ")),
}


def replies(*each):
    class Says(Scripted):
        async def speak(self, view, sampling):
            reply = self.script[self._count]
            self._count += 1
            return reply if isinstance(reply, Reply) else Reply(message=reply)

    return lambda renderer: Says([], renderer, "agent") if not each else _with(Says([], renderer, "agent"), each)


def _with(policy, script):
    policy.script = list(script)
    return policy


@pytest.mark.parametrize("fault", BAD)
def test_what_is_no_summary_is_asked_for_once_more(renderer, fault):
    first = call(("text", {"letters": 1000}))
    policy = replies(first, BAD[fault], say("all I know"), say("#1"))(renderer)
    episode, _ = life(renderer, policy)
    assert episode.agent.stop.reason == "finished" and summaries(episode) == 1 and requests(renderer, episode) == 2
    told = renderer.decode(episode.agent.segments[0].tokens)
    assert f"That was no summary: {fault}. {SUMMARIZE}" in told
    begun = renderer.decode(episode.agent.segments[1].tokens[: episode.agent.segments[1].carried])
    assert "Your summary so far:\nall I know" in begun
    assert episode.agent.turns == 4, "each reply is sampled, and on record"
    calls = episode.agent.calls[1:]
    assert len(calls) == (2 if "tool" in fault else 0) and all("no tool can be called" in made.error for made in calls)
    assert [(made.id, made.turn, made.fault) for made in calls] == [(f"0.0.{n}", 0, "arguments") for n in (1, 2)][: len(calls)]
    assert all(f"Error: {made.error}" in told for made in calls)


@pytest.mark.parametrize("fault", BAD)
def test_a_thread_that_twice_gives_none_ends_and_says_why(renderer, fault):
    policy = replies(call(("text", {"letters": 1000})), CUT_OFF, BAD[fault], say("never said"))(renderer)
    episode, _ = life(renderer, policy)
    assert (episode.agent.stop.reason, episode.agent.stop.detail) == ("summary", f"asked twice for a summary: {fault}")
    assert summaries(episode) == 0 and episode.agent.answer == "" and episode.agent.turns == 3


def test_each_request_for_a_summary_has_a_random_stream_of_its_own(renderer):
    script = [call(("text", {"letters": 1000})), say(" "), say("all I know"), say("#1")]
    _, streams = life(renderer, script)
    assert [stream[4:] for stream in streams] == [(0,), (0, "summary"), (0, "summary", "again"), (1,)]


def test_a_window_without_room_for_a_second_request_ends_there(renderer):
    script = [call(("text", {"letters": 5000})), say("y" * 60), say("#1")]
    ends = set()
    for length in (1, 40, 75):
        policy = replies(script[0], Reply(message=say("y" * length), complete=False), say("#1"))(renderer)
        episode, _ = life(renderer, policy, window=window(700))
        ends.add((episode.agent.stop.reason, episode.agent.stop.detail))
    assert ("window", "no room to ask for a summary again") in ends


def test_a_real_dialect_is_asked_again_after_a_reply_cut_off_and_one_that_calls():
    nano = Renderer.load(NANO)

    class Cut(Words):
        async def speak(self, view, sampling):
            reply = await super().speak(view, sampling)
            return Reply(reply.tokens[:-1], reply.logprobs[:-1], reply.versions[:-1], reply.kept[:-1]) if self.cut() else reply

        def cut(self) -> bool:
            return len(self.texts) == 2

    said = [asks("search_corpus", '{"query": " x"}'), "I know that", "all of it", "#1"]
    for policy in (Cut(nano, *said), Words(nano, said[0], said[0], *said[2:])):
        harness = Harness([search_corpus], window(900, 0.01), "Go.", specs=False)
        episode = asyncio.run(harness.run(TASK, policy, sampling=Sampling(max_tokens=99)))
        assert episode.agent.stop.reason == "finished" and summaries(episode) == 1
        for segment in episode.agent.segments:
            assert [t for s in segment.spans for t in segment.tokens[s.start : s.stop]] == segment.tokens


def test_a_summary_is_asked_for_before_tools_are_refused():
    with pytest.raises(InputError, match="summarize is a share of the window, above 0 and up to hard"):
        Window(900, hard=0.8, summarize=0.9)
    assert Window(900, hard=0.8, summarize=0.8).summarize == 0.8
