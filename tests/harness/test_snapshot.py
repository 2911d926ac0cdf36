"""Snapshots: nothing is copied to take one, and what is branched from it is what stood there, whatever came after."""

from __future__ import annotations

import asyncio
import copy

import pytest

from tests.laws import walks
from tests.laws.walks import TASK, keep, search, search_corpus
from trivium.agents.search.citation import handles
from trivium.harness import Harness, Window, prune_chunks
from trivium.policy import Renderer, Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Branch, Point, Sampling, decode, encode

SEARCH, TWICE = call(search()), call(search(), search())
LIVES = {
    "prunes": (Window(4000), [SEARCH, SEARCH, call(search(), keep("#2", "#5")), SEARCH, say("#2")]),
    "summarizes": (Window(1100, 0.9, 1.0, 80, summarize=0.25), [SEARCH, say("one"), SEARCH, say("two"), say("#1")]),
    "finds no room": (Window(700, 0.9, 1.0, 60), [TWICE, TWICE, call(keep("#1")), SEARCH, say("#1")]),
}


class Witness(Scripted):
    """Notes what each turn showed, as it was then."""

    def __init__(self, script, renderer):
        super().__init__(script, renderer, "agent")
        self.views = []

    async def speak(self, view, sampling):
        self.views.append((list(view.tokens), copy.deepcopy(list(view.messages)), view.stream[4:]))
        return await super().speak(view, sampling)


@pytest.fixture(params=LIVES)
def life(request, renderer):
    """A finished episode, its snapshots, and what each of its turns showed."""
    window, script = LIVES[request.param]
    harness, policy, snapshots = (
        Harness([search_corpus, prune_chunks], window, "Go.", specs=False),
        Witness(script, renderer),
        [],
    )
    episode = asyncio.run(harness.run(TASK, policy, watch=walks.snapshots(snapshots)))
    return harness, episode, snapshots, [view for view in policy.views if len(view[2]) == 1]


def test_a_branch_begins_with_what_its_turn_showed(life):
    harness, episode, snapshots, views = life
    before = encode(episode)
    assert len(snapshots) == len(views) > 2
    for snapshot, (tokens, messages, (turn,)) in zip(snapshots, views, strict=True):
        context = snapshot.branch(Sampling(0.5))
        assert (list(context.segment.tokens), context.text(), snapshot.turn) == (tokens, messages, turn)
        assert context.here() == Point("0", 0, len(tokens)) and context.segment.carried == len(tokens)
        assert context.segment.sampling == Sampling(0.5) and len(context.thread.segments) == 1
        segment = next(each for each in episode.agent.segments if each is snapshot.segment)
        assert context.segment.spans == [span for span in segment.spans if span.stop <= len(tokens)]
        assert [len(part) for part in (context.segment.logprobs, context.segment.kept)] == [len(tokens)] * 2
        assert all(each.stop <= len(tokens) for each in context.segment.versions)
        assert context.thread.calls == [made for made in episode.agent.calls if made.turn < turn]
        assert set(context.refs.values()) == set(handles(context.thread)), "as many handles as were given by then"
    assert encode(episode) == before


def test_a_branch_changes_nothing_of_what_it_branched_off(life, renderer):
    harness, episode, snapshots, views = life
    before = encode(episode)
    script = [call(search()), say("so"), call(keep("#1")), say("so"), say("#1"), say("#1")]
    for number, (snapshot, view) in enumerate(zip(snapshots, views, strict=True)):
        policy = Witness(script, renderer)
        branch = asyncio.run(harness.branch(snapshot, episode, policy, sample=number))
        assert policy.views[0][:2] == view[:2]
        (op,) = (op for op in branch.ops if isinstance(op, Branch))
        assert (op.turn, op.at.position, op.snapshot) == (snapshot.turn, len(view[0]), f"{episode.id}@{snapshot.turn}")
        assert branch.snapshots == [snapshot.id] and branch.id == f"{episode.id}+{snapshot.turn}.{number}"
        branch.agent.calls[0].error = branch.agent.calls[0].pieces = "changed"
    assert encode(episode) == before and encode(decode(before)) == before


def test_a_snapshot_copies_nothing(life):
    _, episode, snapshots, _ = life
    for snapshot in snapshots:
        assert any(snapshot.segment is segment for segment in episode.agent.segments)
    assert snapshots[-1].messages is snapshots[-1].context.messages


def test_a_branch_of_a_real_dialect_speaks_from_the_same_tokens():
    """Of which many letters make one: a snapshot is cut between tokens."""
    from trivium.agents.search.recipe import NANO

    nano = Renderer.load(NANO)
    harness = Harness([search_corpus, prune_chunks], Window(900), "Go.", specs=False)
    first, taken = Witness([call(search()), call(search(), keep("#2")), say("#2")], nano), []
    episode = asyncio.run(harness.run(TASK, first, watch=walks.snapshots(taken)))
    for number, snapshot in enumerate(taken):
        again = Witness([say("#2")], nano)
        asyncio.run(harness.branch(snapshot, episode, again, sample=1))
        assert again.views[0][0] == first.views[number][0]
