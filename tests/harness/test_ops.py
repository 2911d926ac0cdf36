"""Where ops stand: the ends of each cut, and the places where threads begin and join, by numbers worked out from the tokens."""

from __future__ import annotations

import asyncio

from renderers import Qwen3RendererConfig, create_renderer

from tests.laws import walks
from tests.laws.walks import TASK, keep, search, search_corpus
from trivium.harness import Harness, Window, prune_chunks
from trivium.policy import Renderer, Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Branch, Join, Point, Prune, Restart, Spawn, Summarize


def cuts(episode, kind) -> list:
    return [op for op in episode.ops if isinstance(op, kind)]


def test_a_prune_stands_behind_the_results_of_its_turn_and_before_the_next_reply(renderer):
    episode, _ = asyncio.run(walks.pruning(renderer))
    segments, prunes = episode.agent.segments, cuts(episode, Prune)
    assert len(segments) == len(prunes) + 1 == 3
    for number, op in enumerate(prunes):
        assert op.before == Point("0", number, len(segments[number].tokens))
        assert op.after == Point("0", number + 1, segments[number + 1].carried)
        assert op.after.position == segments[number + 1].sampled()[0].start, "what was carried is all that the policy saw next"
        assert (op.author, op.version) == ("agent", 0)


def test_a_summary_is_sampled_before_its_cut(renderer):
    episode, _ = asyncio.run(walks.summarizing(renderer))
    segments = episode.agent.segments
    for number, op in enumerate(cuts(episode, Summarize)):
        last = segments[number].sampled()[-1]
        assert op.before == Point("0", number, last.stop) == Point("0", number, len(segments[number].tokens))
        assert op.after == Point("0", number + 1, segments[number + 1].carried) and (op.author, op.version) == ("agent", 0)
        assert [span.kind for span in segments[number + 1].spans][0] == "summary"


def test_a_restart_stands_where_the_old_context_ends(renderer):
    again = Renderer(renderer.tokenizer, create_renderer(renderer.tokenizer, Qwen3RendererConfig()))
    harness = Harness([search_corpus, prune_chunks], Window(4000, summarize=0.05), "Search.", specs=False)
    script = [call(search()), say("so far"), call(search(), keep("#1")), say("so far"), say("#1")]
    episode = asyncio.run(harness.run(TASK, Scripted(script, again, "agent", version=7)))
    restarts = cuts(episode, Restart)
    assert restarts
    for op in restarts:
        before, after = (episode.agent.segments[point.segment] for point in (op.before, op.after))
        assert op.before.position == len(before.tokens) and op.after.position == after.carried == after.sampled()[0].start
        assert op.after.segment == op.before.segment + 1 and (op.author, op.version, op.reason) == ("harness", -1, "template")
    assert all(op.version == 7 for op in cuts(episode, Summarize))


def test_threads_begin_behind_the_reply_that_called_them_and_join_behind_its_results(renderer):
    episode, _ = asyncio.run(walks.spawning(renderer))
    (segment,) = episode.agent.segments
    first, second = segment.sampled()
    assert {op.at for op in cuts(episode, Spawn)} == {Point("0", 0, first.stop)}
    assert {op.at for op in cuts(episode, Join)} == {Point("0", 0, second.start)}
    assert all((op.author, op.version) == ("agent", 0) for op in episode.ops)


def test_a_branch_stands_where_its_own_tokens_begin(renderer):
    first, second = asyncio.run(walks.branching(renderer))
    (op,) = cuts(second, Branch)
    start = first.agent.segments[0].sampled()[1].start
    assert op.at == Point("0", 0, start) and second.agent.segments[0].sampled()[0].start == start
    assert (op.author, op.parent, op.snapshot, op.turn) == ("harness", first.id, f"{first.id}@1", 1)


def test_an_op_has_the_version_of_the_last_token_spoken(renderer):
    """An update arrived in the middle of the reply."""
    from tests.harness.test_rough import Words, asks
    from trivium.policy import Reply

    class Updated(Words):
        async def speak(self, view, sampling) -> Reply:
            reply = await super().speak(view, sampling)
            half = len(reply.tokens) // 2
            return Reply(reply.tokens, reply.logprobs, [3] * half + [4] * (len(reply.tokens) - half), reply.kept)

    said = [asks("search_corpus", '{"query": "x"}'), asks("prune_chunks", '{"keep": ["#1"]}'), "#1"]
    harness = Harness([search_corpus, prune_chunks], Window(4000), specs=False)
    episode = asyncio.run(harness.run(TASK, Updated(renderer, *said)))
    assert [op.version for op in cuts(episode, Prune)] == [4]
