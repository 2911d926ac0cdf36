"""What a watch hears of an episode, in which order, and what becomes of one that breaks."""

from __future__ import annotations

import asyncio

import pytest
from renderers import Qwen3RendererConfig, create_renderer

from tests.laws.walks import TASK, keep, search, search_corpus
from trivium.errors import InputError
from trivium.harness import Harness, Limits, Subagent, Window, assign_task, prune_chunks
from trivium.harness.watch import CallEvent, CutEvent, TurnEvent
from trivium.policy import Renderer, Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Prune, Restart, Summarize


def attempt(renderer, messages, tools=(search_corpus, prune_chunks), window=None, watch=None, limits=None):
    harness = Harness(tools, window or Window(4000), "Go.", limits, specs=False)
    return asyncio.run(harness.run(TASK, Scripted(messages, renderer, "agent"), watch=watch))


def line(event) -> tuple:
    """An event in short: what, of which thread, and the turn, the call or the op."""
    match event:
        case TurnEvent(thread=thread, turn=turn):
            return ("turn", thread, turn)
        case CallEvent(thread=thread, call=made):
            return ("call", thread, made.id)
        case CutEvent(thread=thread, cut=cut):
            return ("cut", thread, type(cut))


def test_turns_calls_and_cuts_are_told_as_they_happen(renderer):
    events, used = [], []

    def watch(event):
        events.append(line(event))
        if isinstance(event, TurnEvent):
            used.append(event.used)
        if isinstance(event, CallEvent):
            assert event.call.ended and event.call.pieces, "it is over, and what the policy is shown stands in it"

    turns = [call(search(), search()), call(("nope", {}), keep("#2")), say("#2")]
    episode = attempt(renderer, turns, watch=watch)
    assert events == [
        ("turn", "0", 0), ("call", "0", "0.0.0"), ("call", "0", "0.0.1"),
        ("turn", "0", 1), ("cut", "0", Prune), ("call", "0", "0.1.0"), ("call", "0", "0.1.1"),
        ("turn", "0", 2),
    ]  # fmt: skip
    assert used == [span.start for segment in episode.agent.segments for span in segment.sampled()]


def test_summaries_and_restarts_are_cuts_too(renderer):
    again = Renderer(renderer.tokenizer, create_renderer(renderer.tokenizer, Qwen3RendererConfig()))
    events = []
    turns = [call(search()), call(search()), say(" "), say("so far"), say("#1")]
    episode = attempt(again, turns, window=Window(4000, summarize=0.1), watch=lambda event: events.append(line(event)))
    cuts = [what for kind, _, what in events if kind == "cut"]
    assert cuts == [type(op) for op in episode.ops] and {Restart, Summarize} == set(cuts)


def test_calls_in_place_of_a_summary_are_told(renderer):
    events, turns = [], [call(search()), call(search()), say("so far"), say("#1")]
    window = Window(4000, summarize=0.05)
    attempt(renderer, turns, window=window, watch=lambda event: events.append(line(event)))
    assert [what for kind, _, what in events if kind != "turn"] == ["0.0.0", "0.0.1", Summarize]


def test_calls_of_a_turn_that_a_limit_ended_are_told(renderer):
    events = []
    attempt(renderer, [call(search())] * 3, limits=Limits(turns=2), watch=lambda event: events.append(line(event)))
    assert [what for kind, _, what in events if kind == "call"] == ["0.0.0", "0.1.0"]
    window = Window(230, reply=20, hard=1.0)
    events.clear()
    wrong = [call(*[("x" * 30, {})] * 4)] * 3
    episode = attempt(renderer, wrong, window=window, watch=lambda event: events.append(line(event)))
    assert episode.agent.stop.reason == "window" and ("call", "0", episode.agent.calls[-1].id) == events[-1]


def test_sub_agents_are_told_of_too_and_cannot_be_branched_from(renderer):
    child = Subagent(Scripted([call(search()), say("done")], renderer, "child"), Harness([search_corpus], Window(3000)))
    events, refused = [], []

    def watch(event):
        events.append(line(event))
        if isinstance(event, TurnEvent) and not event.is_agent:
            with pytest.raises(InputError, match="turn . of thread 0.0.0/0 is a sub-agent's: only the agent's can be"):
                event.snapshot()
            refused.append(event.turn)

    turns = [call(("assign_task", {"agent": "child", "prompt": "go"})), say("done")]
    attempt(renderer, turns, [assign_task({"child": child})], watch=watch)
    assert refused == [0, 1]
    assert events == [
        ("turn", "0", 0), ("turn", "0.0.0/0", 0), ("call", "0.0.0/0", "0.0.0/0.0.0"), ("turn", "0.0.0/0", 1),
        ("call", "0", "0.0.0"), ("turn", "0", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "turns"), [(TurnEvent, 0), (CallEvent, 1)])
def test_a_watch_that_breaks_ends_its_own_attempt_at_once_and_says_so(renderer, kind, turns):
    heard, script = [], Scripted([call(search())] * 9, renderer, "agent")

    def watch(event):
        heard.append(event)
        if isinstance(event, kind):
            raise ZeroDivisionError("a bug of whoever watches")

    with pytest.raises(ZeroDivisionError, match="whoever watches"):
        asyncio.run(Harness([search_corpus], Window(4000), specs=False).run(TASK, script, watch=watch))
    assert sum(isinstance(event, kind) for event in heard) == 1, "and hears no more"
    assert len(script.script) == 9 and script._count == turns


def test_a_watch_that_breaks_on_a_sub_agent_is_not_taken_for_its_policys_bug(renderer):
    child = Subagent(Scripted([say("done")], renderer, "child"), Harness([search_corpus], Window(3000)))
    threads = []

    def watch(event):
        threads.append(event.thread)
        if event.thread != "0":
            raise ZeroDivisionError("a bug of whoever watches")

    turns = [call(("assign_task", {"agent": "child", "prompt": "go"})), say("done")]
    with pytest.raises(ZeroDivisionError, match="whoever watches"):
        attempt(renderer, turns, [assign_task({"child": child})], watch=watch)
    assert threads == ["0", "0.0.0/0"]


def test_a_watch_that_breaks_in_the_last_turn_is_heard(renderer):
    def watch(event):
        if isinstance(event, CallEvent):
            raise ZeroDivisionError("a bug of whoever watches")

    with pytest.raises(ZeroDivisionError):
        attempt(renderer, [call(search())], limits=Limits(turns=1), watch=watch)
