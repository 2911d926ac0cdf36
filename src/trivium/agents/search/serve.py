"""The trained agent outside training: measured, asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trivium.agents.search.baselines import fused, judged, returned
from trivium.agents.search.measured import effort, refusing
from trivium.agents.search.recipe import Parts, Search, open_corpus
from trivium.agents.search.reward import returned_documents
from trivium.agents.search.watcher import embedding
from trivium.engine import Engine
from trivium.errors import InputError
from trivium.eval import Interval, Result, evaluate, fuse, mean_length
from trivium.eval.fuse import check_rollouts
from trivium.harness import CallEvent, Event, Harness, refuse_gaps, refuse_silence
from trivium.loops import Run
from trivium.reward import cited, documents
from trivium.tasks.beir import beir_tasks
from trivium.trace import Call, Episode, Prune, Sampling, Task
from trivium.viewer import Live
from trivium.viewer.episodes import clean


def _opened(run: str, tasks: int = 0) -> tuple[Parts, Path]:
    """A finished run's parts, with at least so many held-out questions, and its weights. InputError if there are none."""
    opened = Run.open(run)
    recipe = Search.of(opened.recipe(), run)
    return Parts(replace(recipe, eval_tasks=max(tasks, recipe.eval_tasks))), opened.model()


def measure(
    run: str, corpus: str, tasks: int, split: str, sampling: Sampling, seed: int, rollouts: int, no_prune: bool, watch: Live
) -> str:
    """Held-out scores with 95% intervals as lines of text; of several `rollouts` also what they answer together, and with
    `no_prune` also what pruning is worth. InputError for a run without weights, or no such questions."""
    check_rollouts(rollouts, sampling)
    parts, model = _opened(run, tasks)
    if no_prune and parts.recipe.without == "pruning":
        raise InputError(f"{run} was trained --without pruning: there is nothing that --no-prune could refuse")
    if not corpus and parts.real and Run.open(run).changed({"documents": parts.corpus.digest}):
        watch.note(f"{run} was trained on other documents than {parts.recipe.corpus} has now: these scores are on those of now")
    questions = (beir_tasks(corpus, split) if corpus else parts.heldout_tasks)[:tasks]
    judge = parts.judge_on(bool(corpus) or parts.real)
    engine = Engine(model, renderer=parts.renderer, context=parts.window.budget)
    sampling = replace(sampling, max_tokens=parts.window.reply)
    harness = parts.harness_on(open_corpus(corpus, parts.window, embedding(watch))) if corpus else parts.harness

    def attempt(harness: Harness, stage: str) -> tuple[Result, list[Episode]]:
        watch.stage(stage, len(questions) * rollouts)
        how = {"sampling": sampling, "samples": rollouts, "seed": seed, "progress": watch.advance}
        result, attempts = asyncio.run(evaluate(harness, questions, engine, judge, **how))
        episodes = [episode for episode, _ in attempts]
        refuse_gaps(episodes)
        return result, episodes

    result, episodes = attempt(harness, "evaluate")
    said = [_lines(result)]
    if rollouts > 1:
        said.append(_together(result, questions, episodes, rollouts))
    if no_prune:
        bare, _ = attempt(refusing(harness), "evaluate without pruning")
        rows = [_row(name, result.minus(bare, name)) for name in sorted(result.scores.keys() & bare.scores.keys())]
        said.append("\n".join(["with pruning, minus with pruning disabled (paired)", *rows]))
    return "\n\n".join(said)


def _lines(result: Result) -> str:
    names = sorted(result.scores)
    return "\n".join([f"{len(result.tasks)} questions", *(_row(name, result.interval(name)) for name in names)])


def _row(name: str, interval: Interval) -> str:
    return f"{name:20} {interval.mean:8.3f}   [{interval.low:.3f}, {interval.high:.3f}]"


def _together(alone: Result, questions: Sequence[Task], episodes: Sequence[Episode], rollouts: int) -> str:
    """What the rollouts of each question answer together, less what one of them does in the mean (which `alone` holds)."""
    rankings = [returned(episode) for episode in episodes]
    parts = [rankings[at : at + rollouts] for at in range(0, len(rankings), rollouts)]
    found = [judged(task, fused(part)[: mean_length(part)]) for task, part in zip(questions, parts, strict=True)]
    result = Result.of("fused", questions, [[scores] for scores in found])
    spent = sum(effort(episode)["spent"] for episode in episodes) / len(questions)
    rows = [
        f"{rollouts} rollouts fused, cut to their mean length, {spent:,.0f} tokens a question, not {spent / rollouts:,.0f}",
        *(_row(name, result.interval(name)) for name in sorted(result.scores)),
        "fused, minus one of them (paired)",
        *(_row(name, result.minus(alone, name)) for name in sorted(result.scores)),
    ]
    return "\n".join(rows)


def answer(run: str, question: str, corpus: str, greedy: bool = True, rollouts: int = 1) -> Iterator[str]:
    """What the agent does, line by line as it does it, then the ranked documents with their quotes. Several rollouts run
    at once, each line marked by the number of its own, and their rankings are fused.

    Raises InputError for a run without weights, documents that cannot be read, or several rollouts that are greedy.
    """
    parts, model = _opened(run)
    sampling = Sampling(temperature=0.0 if greedy else 1.0, max_tokens=parts.window.reply)
    check_rollouts(rollouts, sampling)
    with Live() as watch:
        harness = parts.harness_on(open_corpus(corpus, parts.window, embedding(watch)))
    engine = Engine(model, renderer=parts.renderer, slots=rollouts, context=parts.window.budget)
    said: asyncio.Queue[str | None] = asyncio.Queue()

    async def attempt(sample: int) -> Episode:
        mark = f"{sample + 1} " if rollouts > 1 else ""
        return await _attempt(harness, engine, question, sampling, sample, lambda line: said.put_nowait(mark + line))

    async def attempts() -> list[Episode]:
        try:
            return list(await asyncio.gather(*(attempt(sample) for sample in range(rollouts))))
        finally:
            said.put_nowait(None)

    with asyncio.Runner() as runner:  # which cancels what is under way when its reader leaves
        loop = runner.get_loop()
        running = loop.create_task(attempts())
        while (line := loop.run_until_complete(said.get())) is not None:
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
    asked = ", ".join(clean(str(value)) for value in call.arguments.values())
    lines = [f"→ {clean(call.name) or 'an unreadable call'}({asked})"]
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
    found: dict[str, str] = {}
    for episode in episodes:
        known = documents(episode.agent, episode.task)
        shown = {piece.ref: piece.shown for piece in episode.agent.passages}
        for ref in (ref for ref in cited(episode.agent) if ref in known):
            found.setdefault(known[ref], shown[ref])
    return found
