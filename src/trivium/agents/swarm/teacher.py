"""A scripted orchestrator that knows the truth, and is wrong on purpose, so that reinforcement learning has something to find.

It splits some wide tables over sub-agents and fills the others itself as far as the steps go; of what it splits it often
forgets a part. It also splits some simple ones, which costs steps and gains nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trivium.policy.base import View
from trivium.policy.message import Message
from trivium.policy.scripted import call, say
from trivium.tasks.proof import mentions
from trivium.trace.episode import Task

NAME, ORDERS = "finder", "Search."
"""What the teacher calls its sub-agent, and what it tells it."""
_STEPS = re.compile(r"\[Steps: (\d+)/(\d+)\]")

_LINE = re.compile(r"^(?P<text>.*\S) (?P<handle>#\d+)$", re.MULTILINE)

Link = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the teacher does what: each is a chance per episode.

    split_wide     of splitting a wide table
    split_simple   of splitting a simple one, for nothing
    forget         of leaving out a third to two thirds of the cells when it splits a wide one
    repeat         of assigning one cell twice when it splits
    stop           of ending a table that it fills itself before its steps are used up
    """

    split_wide: float = 0.5
    split_simple: float = 0.25
    forget: float = 0.2
    repeat: float = 0.1
    stop: float = 0.2

    @classmethod
    def perfect(cls) -> Habits:
        """Splits what is wide, and nothing else, and all of it."""
        return cls(1.0, 0.0, 0.0, 0.0, 0.0)

    @classmethod
    def alone(cls, stop: float) -> Habits:
        """Never splits."""
        return cls(0.0, 0.0, 0.0, 0.0, stop)


@dataclass(frozen=True, slots=True)
class Teacher:
    """What the script says next; equal views get equal words."""

    habits: Habits = Habits()
    seed: int = 0

    def script(self, tasks: Iterable[Task]) -> Callable[[View], Message]:
        """As a script for `policy.Scripted`: a function of the view, which names its task and sample."""
        by_id = {task.id: task for task in tasks}

        def speak(view: View) -> Message:
            _, task, sample, *_ = view.stream
            return self.next(by_id[str(task)], view, int(sample))

        return speak

    def next(self, task: Task, view: View, sample: int) -> Message:
        """The next message at `task`."""
        dice, habits, links = random.Random(f"swarm {self.seed} {task.id} {sample}"), self.habits, task.truth["links"]
        wide = task.truth["kind"] == "wide"
        splits = dice.random() < (habits.split_wide if wide else habits.split_simple)
        shown = [str(message["content"]) for message in view.messages if message["role"] == "tool"]
        if splits and not shown:
            return call(
                ("create_subagent", {"name": f" {NAME}", "system_prompt": f" {ORDERS}"}), *self._assignments(dice, task)
            )
        if not splits and (link := self._unknown(dice, links, shown)):
            return call(("search_corpus", {"query": f" {len(shown) + 1} {link['question']} {link['keyword']}"}))
        return say(citations(task, shown))

    def _assignments(self, dice: random.Random, task: Task) -> list[tuple[str, dict[str, str]]]:
        links = list(enumerate(task.truth["links"], 1))
        if task.truth["kind"] == "wide" and dice.random() < self.habits.forget:
            links = links[: max(1, round(len(links) * dice.choice((1, 2)) / 3))]
        if dice.random() < self.habits.repeat:
            links.append(dice.choice(links))
        return [("assign_task", {"agent": f" {NAME}", "prompt": f" {number} {link['question']}"}) for number, link in links]

    def _unknown(self, dice: random.Random, links: list[Link], shown: list[str]) -> Link | None:
        """The cell to look for next, in order, each once; none where the steps but for the answer are used up."""
        spent, budget = map(int, _STEPS.findall(shown[-1])[-1]) if shown else (0, 3)
        enough = budget - 2 if dice.random() < self.habits.stop else budget - 1
        return links[len(shown)] if spent < enough and len(shown) < len(links) else None


def citations(task: Task, shown: Iterable[str]) -> str:
    """The handles of the passages that state a cell, in the order of the cells, as far as they were shown."""
    lines = [match for text in shown for match in _LINE.finditer(text)]
    stating = (
        next((m["handle"] for m in lines if mentions(m["text"], link["subject"]) and mentions(m["text"], link["object"])), "")
        for link in task.truth["links"]
    )
    return "".join(f" {handle}" for handle in dict.fromkeys(filter(None, stating))) or " none"
