"""The trained agent outside training: measured, exported, asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from trivium.agents.search.recipe import Parts, Search, harness_on, open_corpus
from trivium.agents.search.reward import cited, document
from trivium.engine import Engine
from trivium.eval import Result, evaluate
from trivium.harness import Snapshot, refuse_silence
from trivium.loops import Run
from trivium.tasks.beir import beir_tasks
from trivium.trace import Call, Episode, Prune, Sampling, Task
from trivium.viewer import Live
from trivium.viewer.episodes import clean


def _opened(run: str) -> tuple[Parts, Path]:
    """A finished run's parts, and its weights. InputError if there are none."""
    opened = Run.open(run)
    return Parts(Search.of(opened.recipe(), run)), opened.model()


def measure(run: str, corpus: str, tasks: int, split: str, greedy: bool, seed: int, watch: Live) -> str:
    """Held-out scores with 95% intervals as lines of text. InputError for a run without weights, or no such questions."""
    parts, model = _opened(run)
    questions = (beir_tasks(corpus, split) if corpus else parts.heldout_tasks)[:tasks]
    engine = Engine(model, context=parts.window.budget)
    harness = harness_on(open_corpus(corpus, parts.window), parts.window) if corpus else parts.harness
    sampling = Sampling(temperature=0.0 if greedy else 1.0, max_tokens=parts.window.reply)
    judge = parts.scorer(parts.recipe.steps)
    watch.stage("evaluate", len(questions))
    attempts = evaluate(harness, questions, engine, judge, sampling=sampling, seed=seed, progress=watch.advance)
    result, _ = asyncio.run(attempts)
    return _lines(result)


def _lines(result: Result) -> str:
    rows = [f"{len(result.tasks)} questions"]
    for name in sorted(result.scores):
        mean, low, high = result.interval(name)
        rows.append(f"{name:20} {mean:8.3f}   [{low:.3f}, {high:.3f}]")
    return "\n".join(rows)


def answer(run: str, question: str, corpus: str, greedy: bool = True) -> Iterator[str]:
    """What the agent does, line by line as it does it, then the ranked documents with their quotes.

    Raises InputError for a run without weights, or documents that cannot be read.
    """
    parts, model = _opened(run)
    harness = harness_on(open_corpus(corpus, parts.window), parts.window)
    engine = Engine(model, slots=1, context=parts.window.budget)
    sampling = Sampling(temperature=0.0 if greedy else 1.0, max_tokens=parts.window.reply)
    said: asyncio.Queue[str | None] = asyncio.Queue()
    shown = 0

    def tell(calls: list[Call]) -> None:
        nonlocal shown
        for call in calls[shown:]:
            said.put_nowait(_told(call))
        shown = len(calls)

    def before_turn(snapshot: Snapshot) -> None:
        tell(snapshot.context.thread.calls)

    async def attempt() -> Episode:
        try:
            episode = await harness.run(Task("ask", question), engine, sampling=sampling, on_turn=before_turn)
            refuse_silence([episode])
            tell(episode.agent.calls)  # those of the last turn, where a limit ended it
            return episode
        finally:
            said.put_nowait(None)

    loop = asyncio.new_event_loop()
    try:
        running = loop.create_task(attempt())
        while (line := loop.run_until_complete(said.get())) is not None:
            yield line
        yield from _found(loop.run_until_complete(running))
    finally:
        loop.close()


def _told(call: Call) -> str:
    """One call and what came of it."""
    asked = ", ".join(clean(str(value)) for value in call.arguments.values())
    lines = [f"→ {clean(call.name) or 'an unreadable call'}({asked})"]
    lines += [f"    error: {clean(call.error)}"] if call.error else [f"    {clean(piece.text)}" for piece in call.pieces]
    return "\n".join(lines)


def _found(episode: Episode) -> Iterator[str]:
    """The ranked documents, each with the passage that was cited."""
    thread = episode.agent
    pieces = {piece.ref: piece for call in thread.calls for piece in call.pieces if piece.ref}
    pruned = sum(len(op.chunks) for op in episode.ops if isinstance(op, Prune))
    used = max(len(segment.tokens) for segment in thread.segments)
    yield f"\n{thread.turns} turns, {len(thread.calls)} calls, {pruned} passages pruned, {used} tokens at most"
    if thread.stop and thread.stop.reason != "finished":
        yield f"it stopped without an answer: {thread.stop.reason} ({clean(thread.stop.detail)})"
    known = [ref for ref in cited(thread) if ref in pieces]
    if not known:
        yield "no document was returned"
    for number, ref in enumerate(known, 1):
        quote = clean(pieces[ref].text).removesuffix(ref).strip()
        yield f"{number}. {clean(document(pieces[ref].source))}\n   “{quote}”"
