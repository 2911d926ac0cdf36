"""Effort where documents must be read: a search agent whose searches show how a page begins, and no more.

    for seed in 0 1 2; do trivium train benchmarks/reading.py --seed $seed --out runs/reading-$seed; done
    trivium eval --compare runs/reading-0 runs/reading-1 runs/reading-2 --tasks 256 --no-prune

The search agent itself never reads (docs/learning.md): its searches show the passage that they find. Here a document is a
page of a generated world, six facts on average, and a search shows how each page begins: in a quarter of the hops that says
what is needed, in the others the page must be opened. Questions, faults of the teacher, reward, algorithm and all numbers of
training are the search agent's. What pruning is worth to the perfect script: `--without pruning --sft-steps 0 --steps 0`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trivium import Corpus, Episode, Harness, Limits, Passage, Task, ToolError, tool
from trivium.agents.search import SearchReward, search_tools
from trivium.agents.search.comparison import effort
from trivium.agents.search.recipe import Search
from trivium.agents.search.teacher import Imperfection, Teacher
from trivium.agents.search.tools import BRIEF, BRIEF_UNPRUNED
from trivium.corpus import Embedder
from trivium.corpus.search import CANDIDATES
from trivium.errors import InputError
from trivium.harness import Scene
from trivium.policy import View
from trivium.policy.message import Message
from trivium.policy.scripted import call
from trivium.tasks.proof import mentions
from trivium.tasks.world import World

TURNS, LINE = 24, 10  # the most turns, and the most words of a line of a page: each fact is one


class ReadingReward(SearchReward):
    """The search agent's reward, and beside it what the effort was."""

    async def __call__(self, episode: Episode) -> dict[str, float]:
        return {**await super().__call__(episode), **effort(episode)}


@dataclass(frozen=True)
class Reading(Search):
    """Train a search agent that has to open the pages it finds: a search shows the first line of each."""

    out: str = "runs/reading"
    """the run's folder"""
    window: int = 1280
    """tokens of context the agent may hold: room for two or three pages beside what four hops take of calls"""
    results: int = 4
    """pages a search returns"""
    panels = replace(Search.panels, behaviour=("reads", "searches", "turns", "prune_rate"), titles={"reads": "pages opened"})

    def check(self) -> None:
        super().check()
        if self.corpus:
            raise InputError("--corpus has no pages of which a script knows what they state: this agent reads generated worlds")

    def harness_on(self, corpus: Corpus | Callable[[Task], Corpus]) -> Harness:
        _, *others = search_tools(corpus, pruning=self.without != "pruning")
        tools, brief = [opening_search(corpus, self.results), *others], BRIEF_UNPRUNED if self.without == "pruning" else BRIEF
        return Harness(tools, self.room, brief, Limits(turns=TURNS), specs=False)

    def world_corpus(self, world: World, embedder: Embedder | None = None) -> Corpus:
        return Corpus.build(world.pages(), embedder=embedder, chunk_words=LINE)

    def questions(self, worlds: list[World], count: int) -> list[Task]:
        """The search agent's, answered by pages."""
        tasks = super().questions(worlds, count)
        return [replace(task, truth={**task.truth, "gold": list(map(page_of, task.truth["gold"]))}) for task in tasks]

    def reward(self, beta: float, real: bool) -> ReadingReward:
        return ReadingReward(beta, turns=TURNS, effort=super().reward(beta, real).effort, window=self.room)

    def select(self, episodes: Sequence[Episode], scores: Sequence[Mapping[str, float]]) -> list[Episode]:
        """All of them: no filter was part of this design."""
        return list(episodes)

    def script(self, tasks: Sequence[Task], faults: Imperfection, seed: int = 0) -> Callable[[View], Message]:
        """The teacher's; but a page that states the next link is opened once its first line is in view, which is not pruned."""
        teacher, by_id = Teacher(replace(faults, two_calls=0.0), seed), {task.id: task for task in tasks}

        def speak(view: View) -> Message:
            task = by_id[view.stream[1]]
            message = teacher.next(task, view.messages, int(view.stream[2]))
            if not message.get("tool_calls") or not (handle := self._unopened(task, view.messages)):
                return message
            first = message["tool_calls"][0]["function"]
            if first["name"] == "prune_chunks":
                return call(("prune_chunks", {"keep": [*first["arguments"]["keep"], f" {handle}"]}))
            return call(("read_document", {"doc_id": f" {handle}"})) if first["name"] == "search_corpus" else message

        return speak

    def _unopened(self, task: Task, messages: Sequence[Message]) -> str:
        """The handle of the first line of the page that states the next link, if that is in view and was not opened."""
        lines = [line for m in messages if m["role"] == "tool" for line in str(m["content"]).split("\n")]
        stated = lambda link: any(mentions(line, link["subject"]) and mentions(line, link["object"]) for line in lines)  # noqa: E731
        if not (link := next((link for link in task.truth["chain"] if not stated(link)), None)):
            return ""
        first = self.corpus_of(task).read(page_of(link["doc"]))[0].line
        calls = [each["function"] for m in messages if m["role"] == "assistant" for each in m.get("tool_calls") or ()]
        opened = {each["arguments"]["doc_id"].strip() for each in calls if each["name"] == "read_document"}
        handles = (line.rpartition(" ")[2] for line in lines if line.startswith(f"{first} #"))
        return next((handle for handle in handles if handle not in opened), "")


def page_of(doc: str) -> str:
    """The page of a passage of a generated world."""
    return doc.rpartition(".")[0]


def opening_search(corpus: Corpus | Callable[[Task], Corpus], results: int):
    """The search tool of this agent."""

    @tool
    def search_corpus(scene: Scene, query: str) -> list[Passage]:
        """Search the corpus by words. Returns how each page begins, best first, but for what is in view."""
        if not query.strip():
            raise ToolError("the query is empty")
        searched = corpus if isinstance(corpus, Corpus) else corpus(scene.task)
        pages = dict.fromkeys(hit.chunk.doc_id for hit in searched.search(query.strip(), limit=CANDIDATES))
        begins = [chunk for chunk in (searched.read(page)[0] for page in pages) if chunk.id not in scene.handles.values()]
        return [Passage(chunk.id, chunk.line) for chunk in begins[:results]]

    return search_corpus
