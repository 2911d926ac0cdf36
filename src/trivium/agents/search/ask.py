"""An agent on a person's own documents, step by step, beside what a plain search finds: `trivium ask`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trivium.agents.search.citation import cited, documents
from trivium.agents.search.fuse import check_rollouts, fuse, mean_length
from trivium.agents.search.harness import open_corpus
from trivium.agents.search.recipe import Search
from trivium.agents.search.reward import returned_documents
from trivium.corpus import Corpus
from trivium.corpus.search import CANDIDATES
from trivium.errors import InputError
from trivium.harness import CallEvent, Event, Harness, refuse_silence
from trivium.loops.run import Run
from trivium.policy import Policy
from trivium.recipe.find import opened
from trivium.recipe.outside import Outside, bill
from trivium.recipe.watcher import embedding
from trivium.trace import Call, Episode, Prune, Sampling, Task
from trivium.viewer import Live
from trivium.viewer.episodes import arguments, clean, short

INDENT = (0, 0, 0, 4)
LEAST = 3
"""Documents of a plain search that are shown, however few the agent returned."""


def answer(run: str, question: str, corpus: str, greedy: bool = True, rollouts: int = 1) -> Iterator[RenderableType]:
    """What the agent does, as it does it, then the ranked documents with their quotes beside those of a plain search. Several
    rollouts run at once, each call marked by the number of its own, and their rankings are fused.

    Raises InputError for a run without weights or of another agent, documents that cannot be read, or several rollouts that
    are greedy.
    """
    from trivium.recipe.memory import fitting_engine
    from trivium.recipe.parts import Parts

    folder, recipe = opened(run)
    if not isinstance(recipe, Search):
        raise InputError(f"{run} is a run of {type(recipe).__name__}, which answers no questions about documents")
    parts, room = Parts(recipe, folder.model()), recipe.room
    sampling = Sampling(temperature=0.0 if greedy else 1.0, max_tokens=room.reply)
    check_rollouts(rollouts, sampling)
    with Live() as watch:
        searched = open_corpus(corpus, room, embedding(watch))
    if strange := _strange(folder, recipe, searched):
        yield Text(strange, "yellow")
    engine = fitting_engine(folder.model(), parts.renderer, room.budget, rollouts)
    ask = _Question(question, searched, recipe.harness_on(searched), sampling, rollouts)
    yield from ask.answers(engine, [])


def answer_outside(
    outside: Outside, question: str, corpus: str, greedy: bool = True, rollouts: int = 1
) -> Iterator[RenderableType]:
    """The same of a model that no run trained, and what it cost. Raises as `Outside.open` does."""
    recipe = outside.recipe(Search)
    assert isinstance(recipe, Search)
    sampling = Sampling(temperature=0.0 if greedy else 1.0, max_tokens=recipe.room.reply)
    check_rollouts(rollouts, sampling)
    with Live() as watch:
        searched = open_corpus(corpus, recipe.room, embedding(watch))
    harness = recipe.harness_on(searched)
    policy, episodes = outside.open(recipe, harness, rollouts), []
    yield from _Question(question, searched, harness, sampling, rollouts).answers(policy, episodes)
    yield Text("\n" + bill(policy, episodes), "dim")


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked, of which documents, and how often."""

    text: str
    corpus: Corpus
    harness: Harness
    sampling: Sampling
    rollouts: int

    def answers(self, policy: Policy, episodes: list[Episode]) -> Iterator[RenderableType]:
        """Each call with its results as it happens, then the answer; the attempts are added to `episodes`."""
        lines: asyncio.Queue[RenderableType | None] = asyncio.Queue()

        async def attempts() -> list[Episode]:
            try:
                each = (self._attempt(policy, sample, lines) for sample in range(self.rollouts))
                return list(await asyncio.gather(*each))
            finally:
                lines.put_nowait(None)

        with asyncio.Runner() as runner:  # which cancels what is under way when its reader leaves
            loop = runner.get_loop()
            running = loop.create_task(attempts())
            while (line := loop.run_until_complete(lines.get())) is not None:
                yield line
            episodes += loop.run_until_complete(running)
            yield from _results(episodes, self.corpus, self.text)

    async def _attempt(self, policy: Policy, sample: int, lines: asyncio.Queue) -> Episode:
        """One rollout, each call said when its turn is over."""
        mark = f"{sample + 1} " if self.rollouts > 1 else ""

        def watch(event: Event) -> None:
            for line in _lines(event.call, mark) if isinstance(event, CallEvent) else ():
                lines.put_nowait(line)

        task = Task("ask", self.text)
        episode = await self.harness.run(task, policy, sample=sample, sampling=self.sampling, watch=watch)
        refuse_silence([episode])
        return episode


def _strange(run: Run, recipe: Search, corpus: Corpus) -> str:
    """One line for a person whose documents are others than the agent learned from; "" where they are the same."""
    if not recipe.real:
        return (
            f"{run.folder} learned about generated worlds, not from documents such as these: its answers here mean little. "
            "Train one on yours: trivium train search --corpus"
        )
    if run.changes({"documents": corpus.digest}):
        return f"{run.folder} learned from other documents ({recipe.corpus}): trust it less here than there"
    return ""


def _lines(call: Call, mark: str) -> Iterator[RenderableType]:
    """One call and what came of it, a line each, as far as the terminal goes."""
    name = clean(call.name) or "an unreadable call"
    yield Text.assemble(mark, "→ ", (name, "bold cyan"), " ", arguments(call.arguments))
    if call.error:
        yield Padding(Text(f"error: {clean(call.error)}", "red"), INDENT)
    for piece in () if call.error else call.pieces:
        text = Text(f"{piece.ref} {clean(piece.shown)}".strip(), "dim", no_wrap=True, overflow="ellipsis")
        yield Padding(text, INDENT, expand=False)


def _results(episodes: Sequence[Episode], corpus: Corpus, question: str) -> Iterator[RenderableType]:
    """What it took, and the ranked documents beside those of one search with the question, each with its passage."""
    yield Text("\n" + "\n".join(_effort(episode) for episode in episodes))
    rankings = [returned_documents(episode) for episode in episodes]
    citations = _citations(episodes)
    ours = [citations[doc] for doc in fuse(rankings)[: mean_length(rankings)]]
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", width=3)
    table.add_column("the agent returned", ratio=1, overflow="fold")
    table.add_column("plain search finds", ratio=1, overflow="fold")
    plain = _plain(corpus, question)[: max(LEAST, len(ours))]
    nothing = Text("no document was returned")
    for number, (one, other) in enumerate(zip_longest(ours or [None], plain), 1):
        cells = [one.cell() if one else nothing if not ours and number == 1 else "", other.cell() if other else ""]
        table.add_row(f"{number}.", *cells)
    yield table


def _effort(episode: Episode) -> str:
    thread = episode.agent
    pruned = sum(len(op.chunks) for op in episode.ops if isinstance(op, Prune))
    used = max(len(segment.tokens) for segment in thread.segments)
    line = f"{thread.turns} turns, {len(thread.calls)} calls, {pruned} passages pruned, {used} tokens at most"
    if thread.stop and thread.stop.reason != "finished":
        line += f"\nit stopped without an answer: {thread.stop.reason} ({clean(thread.stop.detail)})"
    return line


@dataclass(frozen=True, slots=True)
class _Citation:
    """A document in a ranking, and the passage that stands for it. `pruned`: the agent had dropped that when it answered."""

    doc: str
    passage: str
    pruned: bool = False

    def cell(self) -> Text:
        mark = (" (pruned, then cited)", "red") if self.pruned else ""
        return Text.assemble((clean(self.doc), "bold"), mark, "\n", (f"“{short(self.passage)}”", "dim"))


def _citations(episodes: Sequence[Episode]) -> dict[str, _Citation]:
    """Each returned document's passage that was cited first."""
    found: dict[str, _Citation] = {}
    for episode in episodes:
        thread, known = episode.agent, documents(episode.agent, episode.task)
        shown = {piece.ref: piece.shown for piece in thread.passages}
        pruned = {ref for op in episode.ops if isinstance(op, Prune) and op.before.thread == thread.id for ref in op.chunks}
        in_view = {span.ref for span in thread.segments[-1].spans if span.kind == "chunk"}
        for ref in (ref for ref in cited(thread) if ref in known):
            found.setdefault(known[ref], _Citation(known[ref], shown[ref], ref in pruned - in_view))
    return found


def _plain(corpus: Corpus, question: str) -> list[_Citation]:
    """The documents that one search with the question ranks, each with its best passage."""
    ranked: dict[str, _Citation] = {}
    for hit in corpus.search(question, CANDIDATES):
        ranked.setdefault(hit.chunk.doc_id, _Citation(hit.chunk.doc_id, hit.chunk.line))
    return list(ranked.values())
