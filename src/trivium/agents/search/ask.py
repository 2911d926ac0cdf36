"""The trained agent on a person's own documents, step by step: `trivium ask`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from trivium.agents.search.citation import cited, documents
from trivium.agents.search.fuse import check_rollouts, fuse, mean_length
from trivium.agents.search.harness import open_corpus
from trivium.agents.search.recipe import Search
from trivium.agents.search.reward import returned_documents
from trivium.engine import Engine
from trivium.harness import CallEvent, Event, Harness, refuse_silence
from trivium.recipe.find import opened
from trivium.recipe.parts import Parts
from trivium.recipe.watcher import embedding
from trivium.trace import Call, Episode, Prune, Sampling, Task
from trivium.viewer import Live
from trivium.viewer.episodes import clean


def answer(run: str, question: str, corpus: str, greedy: bool = True, rollouts: int = 1) -> Iterator[str]:
    """What the agent does, line by line as it does it, then the ranked documents with their quotes. Several rollouts run
    at once, each line marked by the number of its own, and their rankings are fused.

    Raises InputError for a run without weights, documents that cannot be read, or several rollouts that are greedy.
    """
    folder, recipe = opened(run)
    assert isinstance(recipe, Search)
    parts, room = Parts(recipe, folder.model()), recipe.room
    sampling = Sampling(temperature=0.0 if greedy else 1.0, max_tokens=room.reply)
    check_rollouts(rollouts, sampling)
    with Live() as watch:
        harness = recipe.harness_on(open_corpus(corpus, room, embedding(watch)))
    engine = Engine(folder.model(), renderer=parts.renderer, slots=rollouts, context=room.budget)
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    async def attempt(sample: int) -> Episode:
        mark = f"{sample + 1} " if rollouts > 1 else ""
        return await _attempt(harness, engine, question, sampling, sample, lambda line: lines.put_nowait(mark + line))

    async def attempts() -> list[Episode]:
        try:
            return list(await asyncio.gather(*(attempt(sample) for sample in range(rollouts))))
        finally:
            lines.put_nowait(None)

    with asyncio.Runner() as runner:  # which cancels what is under way when its reader leaves
        loop = runner.get_loop()
        running = loop.create_task(attempts())
        while (line := loop.run_until_complete(lines.get())) is not None:
            yield line
        yield from _found(loop.run_until_complete(running))


async def _attempt(
    harness: Harness, engine: Engine, question: str, sampling: Sampling, sample: int, say: Callable[[str], None]
) -> Episode:
    """One rollout, each call said when its turn is over."""

    def watch(event: Event) -> None:
        if isinstance(event, CallEvent):
            say(_told(event.call))

    episode = await harness.run(Task("ask", question), engine, sample=sample, sampling=sampling, watch=watch)
    refuse_silence([episode])
    return episode


def _told(call: Call) -> str:
    """One call and what came of it."""
    arguments = ", ".join(clean(str(value)) for value in call.arguments.values())
    lines = [f"→ {clean(call.name) or 'an unreadable call'}({arguments})"]
    lines += [f"    error: {clean(call.error)}"] if call.error else [f"    {clean(piece.text)}" for piece in call.pieces]
    return "\n".join(lines)


def _found(episodes: Sequence[Episode]) -> Iterator[str]:
    """What it took, and the ranked documents, each with the passage that was cited."""
    yield "\n" + "\n".join(_effort(episode) for episode in episodes)
    rankings = [returned_documents(episode) for episode in episodes]
    ranked, quotes = fuse(rankings)[: mean_length(rankings)], _quotes(episodes)
    if not ranked:
        yield "no document was returned"
    for number, doc in enumerate(ranked, 1):
        yield f"{number}. {clean(doc)}\n   “{clean(quotes[doc]).strip()}”"


def _effort(episode: Episode) -> str:
    thread = episode.agent
    pruned = sum(len(op.chunks) for op in episode.ops if isinstance(op, Prune))
    used = max(len(segment.tokens) for segment in thread.segments)
    line = f"{thread.turns} turns, {len(thread.calls)} calls, {pruned} passages pruned, {used} tokens at most"
    if thread.stop and thread.stop.reason != "finished":
        line += f"\nit stopped without an answer: {thread.stop.reason} ({clean(thread.stop.detail)})"
    return line


def _quotes(episodes: Sequence[Episode]) -> dict[str, str]:
    """Each returned document's passage that was cited first."""
    quotes: dict[str, str] = {}
    for episode in episodes:
        known = documents(episode.agent, episode.task)
        shown = {piece.ref: piece.shown for piece in episode.agent.passages}
        for ref in (ref for ref in cited(episode.agent) if ref in known):
            quotes.setdefault(known[ref], shown[ref])
    return quotes
