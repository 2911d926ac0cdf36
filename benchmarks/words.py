"""What a small model can copy, and how much it must have seen: the agent of docs/your-agent.md with other words.

trivium train benchmarks/words.py --workers 1 --kind codes --sft-steps 16 --out runs/codes-16
"""

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import trivium as tv
from trivium.policy.scripted import call, say
from trivium.tasks.names import Kind, name

LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


@dataclass(frozen=True)
class Words(tv.Recipe):
    """Answers questions about a company's staff, who have names, codes or numbers."""

    sft_steps: int = 48
    """steps of the warm-up, 32 episodes each"""
    steps: int = 16
    """steps of RL"""
    groups: int = 8
    """questions a step"""
    people: int = 384
    """how many people there are questions about, besides 64 that are held out"""
    kind: Literal["names", "codes", "numbers"] = "names"
    """what people and cities are called: Brennix Holt, KQT-4711, 481516"""
    space: int = 1
    """blanks before a word that a call or an answer begins with: 1 as in running text, or 0"""
    wrong: float = 0.6
    """share of the logged conversations that answer with the wrong city"""

    @cached_property
    def cities(self) -> dict[str, tuple[str, str]]:
        """Where each was born, and works."""
        dice, cities = random.Random(0), {}
        while len(cities) < self.people + 64:
            cities[self._word(dice, "person")] = (self._word(dice, "city"), self._word(dice, "city"))
        return cities

    def _word(self, dice: random.Random, what: Kind) -> str:
        if self.kind == "codes":
            return f"{''.join(dice.choices(LETTERS, k=3))}-{dice.randrange(1000, 10000)}"
        return name(dice, what) if self.kind == "names" else str(dice.randrange(100_000, 1_000_000))

    def tasks(self, split: str) -> list[tv.Task]:
        tasks = [tv.Task(who, f"In which city does {who} work?", {"city": work}) for who, (_, work) in self.cities.items()]
        return tasks[64:] if split == "train" else tasks[:64]

    def harness(self) -> tv.Harness:
        @tv.tool
        def look_up(scene, person: str) -> str:
            """What the company knows of a person."""
            if person.strip() not in self.cities:
                raise tv.ToolError("nobody has that name")
            return "{0} was born in {1}. {0} works in {2}.".format(person.strip(), *self.cities[person.strip()])

        return tv.Harness([look_up], tv.Window(240, reply=50), limits=tv.Limits(turns=3), specs=False)

    def scorer(self, step: int) -> tv.Scorer:
        async def right(episode: tv.Episode) -> dict[str, float]:
            looked = any(not each.error for each in episode.agent.calls)
            return {"reward": float(episode.agent.answer.strip() == episode.task.truth["city"]), "looked_up": float(looked)}

        return right

    def lessons(self) -> tv.Policy:
        dice, blank = random.Random(1), " " * self.space
        log = {
            who: [call(("look_up", {"person": blank + who})), say(blank + cities[dice.random() > self.wrong])]
            for who, cities in self.cities.items()
        }

        def speak(view):
            _, who, _, _, turn = view.stream
            return log[who][int(turn)]

        return tv.Scripted(speak, self.renderer, "teacher")
