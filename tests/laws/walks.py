"""Episodes that walk every context operation, spoken by scripts: what the laws are tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trivium.harness import Harness, Limits, Passage, Snapshot, Subagent, Window, assign_task, prune_chunks, tool
from trivium.harness.watch import Event, TurnEvent, Watch
from trivium.policy import Reply, Scripted, View
from trivium.policy.scripted import call, say
from trivium.trace import Episode, Sampling, Task

FACTS = {f"doc{number}:0": f"Doc {number}: fact number {number} about thing {number % 3}." for number in range(12)}
TASK = Task("walk", "Which documents speak of thing 1?", {"gold": ["doc1", "doc4"], "answer": "fact number 4"})


@tool
def search_corpus(scene, query: str, limit: int = 4) -> list[Passage]:
    """Search the facts."""
    return [Passage(source, text) for source, text in FACTS.items() if source not in scene.seen][:limit]


@dataclass
class Watching:
    """A policy that notes every view it is shown: the witness of law 2."""

    inner: Scripted
    views: list[list[int]] = field(default_factory=list)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def speak(self, view: View, sampling: Sampling) -> Reply:
        self.views.append(list(view.tokens))
        return await self.inner.speak(view, sampling)


def search(query: str = " thing") -> tuple[str, dict]:
    return ("search_corpus", {"query": query})


def snapshots(taken: list[Snapshot]) -> Watch:
    """A watch that takes a snapshot before each turn."""

    def watch(event: Event) -> None:
        if isinstance(event, TurnEvent):
            taken.append(event.snapshot())

    return watch


def keep(*refs: str) -> tuple[str, dict]:
    return ("prune_chunks", {"keep": [f" {ref}" for ref in refs]})


def script(renderer, messages: Sequence[dict], name: str = "agent") -> Watching:
    return Watching(Scripted(messages, renderer, name))


async def pruning(renderer) -> tuple[Episode, Watching]:
    """Prunes inside earlier tool results, twice, the second time in the same turn as a search."""
    harness = Harness([search_corpus, prune_chunks], Window(4000), "Search.", specs=False)
    policy = script(
        renderer,
        [call(search()), call(search()), call(keep("#2", "#5")), call(search(), keep("#2")), say("#2 #9")],
    )
    return await harness.run(TASK, policy), policy


async def summarizing(renderer) -> tuple[Episode, Watching]:
    """Summarizes itself twice."""
    harness = Harness([search_corpus], Window(1100, soft=0.9, hard=1.0, reply=80, summarize=0.1), "Search.", specs=False)
    said = [call(search()), say("Seen so far: 1 and 4."), call(search()), say("Still 1 and 4."), say("#1")]
    policy = script(renderer, said)
    return await harness.run(TASK, policy), policy


async def spawning(renderer) -> tuple[Episode, Watching]:
    """Two frozen sub-agents in parallel, one of them twice."""
    child = Harness([search_corpus], Window(3000), "Help.", specs=False)
    agents = {
        "reader": Subagent(Scripted(lambda view: say("It is doc 1."), renderer, "frozen-reader"), child),
        "finder": Subagent(Scripted(_find, renderer, "frozen-finder"), child),
    }
    harness = Harness([assign_task(agents)], Window(4000), "Lead.", Limits(turns=8), specs=False)
    asks = [("assign_task", {"agent": agent, "prompt": f"Look {n}"}) for n, agent in enumerate(["finder", "reader", "finder"])]
    policy = script(renderer, [call(*asks), say("doc 1")])
    return await harness.run(TASK, policy), policy


def _find(view: View) -> dict:
    return say("Found.") if any(message["role"] == "tool" for message in view.messages) else call(search())


async def branching(renderer) -> tuple[Episode, Episode]:
    """An episode, and another that branches off before its second turn."""
    harness = Harness([search_corpus, prune_chunks], Window(4000), "Search.", specs=False)
    taken: list[Snapshot] = []
    policy = script(renderer, [call(search()), call(search()), say("#1 #5")])
    first = await harness.run(TASK, policy, watch=snapshots(taken))
    second = await harness.branch(taken[1], first, script(renderer, [call(keep("#2")), say("#2")]), sample=1)
    return first, second


WALKS = {"prune": pruning, "summarize": summarizing, "spawn": spawning}
