"""What a policy is told of its window, which depends on the tools that it has."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.laws.walks import TASK, keep, search, search_corpus
from trivium.harness import Harness, Keep, Window, prune_chunks, tool
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Task


@tool(frees=True)
def compact(scene) -> Keep:
    """Keep the first chunk."""
    return Keep((next(iter(scene.handles)),), "Compacted.")


def life(renderer, tools, *messages, window=None):
    window = window or Window(2000, soft=0.3, hard=0.45, reply=60)  # of which three searches take more than hard
    harness = Harness(tools, window, "Go.", specs=False)
    return asyncio.run(harness.run(TASK, Scripted([*[call(search())] * 3, *messages], renderer, "agent")))


@pytest.mark.parametrize(
    ("tools", "line", "refusal"),
    [
        ([prune_chunks], "Prune or answer.", "the window is nearly full: prune_chunks or answer"),
        ([], "Answer.", "the window is nearly full: answer"),
        ([compact], "Compact or answer.", "the window is nearly full: compact or answer"),
        ([compact, prune_chunks], "Compact, prune or answer.", "the window is nearly full: compact, prune_chunks or answer"),
    ],
)
def test_a_full_window_speaks_of_the_tools_there_are(renderer, tools, line, refusal):
    episode = life(renderer, [search_corpus, *tools], call(search()), say("#1"))
    assert [made.error for made in episode.agent.calls] == ["", "", "", refusal]
    text = renderer.decode(episode.agent.segments[0].tokens)
    first, *_, last = re.findall(r"\[Token usage: [\d,]+/2,000\](.*)", text)
    assert (first, last) == ("", f" {line}"), "below soft there is no advice"


@pytest.mark.parametrize(("free", "asked"), [(prune_chunks, keep("#2")), (compact, ("compact", {}))])
def test_whatever_frees_room_may_be_called_past_the_hard_threshold(renderer, free, asked):
    episode = life(renderer, [search_corpus, free], call(asked), call(search()), say("#1"))
    assert not any(made.error for made in episode.agent.calls) and len(episode.ops) == 1


def test_a_window_that_summarizes_itself_needs_no_advice(renderer):
    window = Window(2000, soft=0.3, hard=0.9, reply=60, summarize=0.5)
    for tools, advised in ([prune_chunks], True), ([], False):
        episode = life(renderer, [search_corpus, *tools], say("so"), say("so"), window=window)
        assert ("answer." in renderer.decode(episode.agent.segments[0].tokens).lower()) == advised


def test_what_is_advised_is_part_of_how_episodes_live():
    """Old stores, whose harnesses all advised to prune, keep the digest of one that can."""
    window = Window(2000)
    assert Harness([], window).digest != Harness([], Window(2000, summarize=0.9)).digest
    assert Harness([search_corpus, prune_chunks], window, specs=False).digest.startswith("6db483e5c012")
    assert not Harness([search_corpus], window, specs=False).digest.startswith("95ed2bef4c25")  # advised to prune, in vain


def test_only_a_tool_that_says_so_frees_room():
    assert prune_chunks.frees and compact.frees and not search_corpus.frees
    assert compact.name == "compact" and compact.description == "Keep the first chunk."


def test_thresholds_are_passed_by_what_is_more_than_their_share(renderer):
    """A window of 2,048, of which shares of whole tokens are exact numbers."""
    turns = [call(search()), call(search()), say("#1")]

    def attempt(**shares):
        window = Window(2048, **{"soft": 0.5, "hard": 1.0, "reply": 60} | shares)
        harness = Harness([search_corpus, prune_chunks], window, "Go.", specs=False)
        return asyncio.run(harness.run(TASK, Scripted([*turns, say("#1")], renderer, "agent")))

    _, second, third = attempt().agent.segments[0].sampled()
    errors = [attempt(soft=used / 2048, hard=used / 2048).agent.calls[1].error for used in (second.stop, second.stop - 1)]
    assert errors == ["", "the window is nearly full: prune_chunks or answer"]
    for used, advised in ((third.start, False), (third.start - 1, True)):
        text = renderer.decode(attempt(soft=used / 2048).agent.segments[0].tokens)
        assert text.count("Prune or answer.") == advised
    results = third.start - len("[Token usage: 999/2,048]")  # behind the second turn, without the line
    assert [len(attempt(summarize=used / 2048).ops) for used in (results, results - 1)] == [0, 1]


def test_a_policy_is_asked_as_long_as_one_token_has_room(renderer):
    asked = []

    class Noting(Scripted):
        async def speak(self, view, sampling):
            asked.append(sampling.max_tokens)
            return await super().speak(view, sampling)

    prompt = len(renderer.opening(Harness([], Window(900), "Go.").opening("Who?", renderer)))
    for room in (1, 2):
        harness = Harness([], Window(prompt + room, reply=room), "Go.")
        asyncio.run(harness.run(Task("t", "Who?"), Noting([say("x")], renderer, "agent")))
    assert asked == [1, 2]
