"""An agent of your own: a tool, questions, a reward and logged conversations. It imitates these, then learns beyond them.

trivium train examples/agent.py            (docs/your-agent.md goes through it)
"""

import random
from dataclasses import dataclass
from functools import cached_property

import trivium as tv
from trivium.policy.scripted import call, say
from trivium.tasks.names import name


@dataclass(frozen=True)
class Staff(tv.Recipe):
    """Answers in which city somebody works. Its log takes the city of birth in six conversations of ten."""

    people: int = 448
    """how many people there are; the last 64 are asked about when it is measured"""
    steps: int = 24
    """steps of RL"""
    groups: int = 8
    """questions a step"""

    @cached_property
    def staff(self) -> dict[str, tuple[str, str]]:
        """Everybody's city of birth and of work."""
        dice = random.Random(0)
        return {name(dice, "person"): (name(dice, "city"), name(dice, "city")) for _ in range(self.people)}

    def tasks(self, split: str) -> list[tv.Task]:
        people = list(self.staff)[:-64] if split == "train" else list(self.staff)[-64:]
        return [tv.Task(each, f"In which city does {each} work?", {"city": self.staff[each][1]}) for each in people]

    def harness(self) -> tv.Harness:
        @tv.tool
        def look_up(scene, person: str) -> str:
            """What the company knows of a person."""
            if person.strip() not in self.staff:
                raise tv.ToolError("nobody has that name")
            return "{0} was born in {1}. {0} works in {2}.".format(person.strip(), *self.staff[person.strip()])

        return tv.Harness([look_up], tv.Window(200, reply=40), limits=tv.Limits(turns=3), specs=False)

    def scorer(self, step: int) -> tv.Scorer:
        async def right(episode: tv.Episode) -> dict[str, float]:
            return {"reward": float(episode.agent.answer.strip() == episode.task.truth["city"])}

        return right

    def lessons(self) -> tv.Policy:
        def script(view):
            """What was said in the log: a call, then a city."""
            _, person, *_ = view.stream
            if len(view.messages) == 1:
                return call(("look_up", {"person": f" {person}"}))
            return say(f" {self.staff[person][random.Random(person).random() > 0.6]}")

        return tv.Scripted(script, self.renderer, "log")
