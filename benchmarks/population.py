"""A simulated population that asks a served search agent over HTTP, with a taste that nobody tells the agent.

**The hidden taste.** People want the document that states their answer, and few beside it: an answer without it is worth
nothing, and each document that supports nothing takes a third away (`satisfaction`).

**What they do** is all that a server sees, and it is noisy. They keep what helps and delete the rest (an edit), take the answer
or turn it down, ask again where it was missing, vote now and then. A tenth of the time they do as if their dice had answered.
Some say nothing and are gone, and whoever is annoyed twice in a row leaves for good.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import httpx

from trivium.corpus import Document
from trivium.tasks.world import World
from trivium.trace import Task

_LINE = re.compile(r"^(?P<text>.*\S) (?P<handle>#\d+)$", re.MULTILINE)
_HANDLE = re.compile(r"#\d+")
NOISE, SILENT, VOTES, TWICE = 0.1, 0.2, 0.15, 0.03
"""How often people act by their dice; say nothing to a bad answer; vote; send what they did twice, as a bad network does."""
PATIENCE = 900.0
"""Seconds that people wait for an answer: the machine may have other work."""
ASKS, ANNOYED = 3, 2
"""Questions of a person, and bad answers in a row after which they leave for good."""


def world() -> World:
    """What these people ask about. No run has learned in it: its names are of the words that are held out."""
    return World.make(7077, 450, "heldout")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person was told: the episode's id, the handles in the order named, and the document behind each ("" for one that
    was never shown)."""

    id: str
    handles: tuple[str, ...]
    documents: tuple[str, ...]


def satisfaction(task: Task, documents: Sequence[str]) -> float:
    """The hidden taste, from 0 to 1: the document that states the answer is there, and few that support nothing."""
    gold, right = set(task.truth["gold"]), task.truth["chain"][-1]["doc"]
    superfluous = sum(document not in gold for document in documents)
    return float(right in documents) * max(0.0, 1 - superfluous / 3)


@dataclass
class Population:
    """People behind one server. `said` counts what they did; `truth` has the true satisfaction with each episode."""

    base: str
    tasks: Sequence[Task]
    documents: Sequence[Document]
    seed: int = 0
    said: dict[str, int] = field(default_factory=dict)
    truth: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known = {document.text: document.id for document in self.documents}

    # --- asking

    async def asked(self, client: httpx.AsyncClient, task: Task, user: str, seed: int) -> Answer | None:
        """Ask, and wait for the answer; None where the server had none."""
        begun = await client.post("/v1/episodes", json={"input": task.prompt, "user": user, "seed": seed})
        if begun.status_code != 201:
            await asyncio.sleep(0.5)
            return None
        id = begun.json()["id"]
        events = (await client.get(f"/v1/episodes/{id}/events")).text
        told = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: ")]
        answer = next((event for event in told if event["type"] == "answer"), None)
        if answer is None:
            return None
        shown = "\n".join(event["result"] for event in told if event["type"] == "call")
        passages = {match["handle"]: self._document(match["text"]) for match in _LINE.finditer(shown)}
        named = tuple(dict.fromkeys(_HANDLE.findall(answer["text"])))
        read = Answer(id, named, tuple(passages.get(handle, "") for handle in named))
        self.truth[id] = satisfaction(task, read.documents)
        return read

    def _document(self, passage: str) -> str:
        """The document that a passage shows, whose title stands before its text."""
        return self._known.get(passage.partition(": ")[2], "")

    # --- living

    async def live(self, until: Callable[[], bool], at_once: int = 24) -> None:
        """People who come, ask, do what they do and go, `at_once` at a time, until `until` says so."""
        names = (f"{self.seed}-{number}" for number in count())
        limits = httpx.Limits(max_connections=2 * at_once)
        async with httpx.AsyncClient(base_url=self.base, timeout=PATIENCE, limits=limits) as client:
            await asyncio.gather(*(self._stream(client, names, until) for _ in range(at_once)))

    async def _stream(self, client: httpx.AsyncClient, names: Iterator[str], until: Callable[[], bool]) -> None:
        while not until():
            await self._person(client, next(names), until)

    async def _person(self, client: httpx.AsyncClient, name: str, until: Callable[[], bool]) -> None:
        dice, bad = random.Random(f"person {name}"), 0
        for _ in range(ASKS):
            task = dice.choice(self.tasks)
            answer = await self.asked(client, task, name, dice.randrange(2**31))
            if answer is None or until():
                return
            content = await self._react(client, task, answer, name, dice)
            if not content and dice.random() < 0.5:  # asked again, once
                again = await self.asked(client, task, name, dice.randrange(2**31))
                content = bool(again) and await self._react(client, task, again, name, dice)
            bad = 0 if content else bad + 1
            if bad == ANNOYED:
                self._count("left for good")
                return

    async def _react(self, client: httpx.AsyncClient, task: Task, answer: Answer, name: str, dice: random.Random) -> bool:
        """What a person does with an answer; whether they were content."""
        content = self.truth[answer.id] > 0
        if dice.random() < NOISE:
            content = dice.random() < 0.5
        if not content and dice.random() < SILENT:
            self._count("silent")
            return False
        gold = set(task.truth["gold"])
        kept = [h for h, document in zip(answer.handles, answer.documents, strict=True) if document in gold] if content else []
        await self._say(client, answer, name, dice, "edit", text=" ".join(kept))
        await self._say(client, answer, name, dice, "accept", value=float(content))
        if not content:
            await self._say(client, answer, name, dice, "follow_up", text=f"That is not what I asked. {task.prompt}")
        if dice.random() < VOTES:
            await self._say(client, answer, name, dice, "vote", value=1.0 if content else -1.0)
        return content

    async def _say(self, client: httpx.AsyncClient, answer: Answer, name: str, dice: random.Random, kind: str, **what) -> None:
        """Tell the server one thing, now and then twice."""
        body = {"target": answer.id, "kind": kind, "user": name, "key": f"{answer.id} {kind}".replace(" ", "-"), **what}
        for _ in range(2 if dice.random() < TWICE else 1):
            (await client.post("/v1/feedback", json=body)).raise_for_status()
        self._count(kind)

    def _count(self, what: str) -> None:
        self.said[what] = self.said.get(what, 0) + 1

    # --- measuring

    async def panel(self, tasks: Sequence[Task], names: Sequence[str], at_once: int = 24) -> dict[str, float]:
        """The true satisfaction of some people with one question each, which they ask and say nothing to: task id -> number."""
        gate = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(base_url=self.base, timeout=PATIENCE) as client:

            async def one(number: int) -> float:
                async with gate:
                    answer = await self.asked(client, tasks[number], names[number], number)
                    return self.truth[answer.id] if answer else 0.0

            values = await asyncio.gather(*(one(number) for number in range(len(tasks))))
        return {task.id: value for task, value in zip(tasks, values, strict=True)}
