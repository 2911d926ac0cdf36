"""Chooses the episodes to look at, by any of their numbers or labels.

    condition = Condition.of("f1<0.5")
    condition.holds(facts(episode, scores))

`trivium show RUN --where "f1<0.5" hops=3` shows the episodes for which all conditions hold.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from trivium.errors import InputError
from trivium.trace import Episode

Fact = float | str
_FORM = re.compile(r"\s*([\w.]+)\s*(<=|>=|!=|==?|<|>)\s*(.*?)\s*", re.DOTALL)
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def facts(episode: Episode, scores: Mapping[str, float]) -> dict[str, Fact]:
    """The numbers and labels of an episode: its scores, the numbers and words of its task's truth, its task, sample and policy,
    why it stopped, its turns, calls and failed calls, and its deployment, session and account where it was served."""
    thread = episode.agent
    truth = {name: value for name, value in episode.task.truth.items() if isinstance(value, str | int | float)}
    service = {name: getattr(episode, name) for name in ("deployment", "session", "account") if getattr(episode, name)}
    return {
        **truth,
        **service,
        "task": episode.task.id,
        "sample": episode.sample,
        "policy": thread.policy,
        "stop": thread.stop.reason if thread.stop else "not ended",
        "turns": thread.turns,
        "calls": len(thread.calls),
        "errors": sum(bool(call.error) for call in thread.calls),
        **scores,
    }


@dataclass(frozen=True, slots=True)
class Condition:
    """A name, a sign (< <= > >= = !=) and a value."""

    name: str
    sign: str
    value: str

    @classmethod
    def of(cls, text: str) -> Condition:
        """The condition that `text` states. InputError where it states none."""
        if not (form := _FORM.fullmatch(text)):
            raise InputError(f"--where {text!r} is no condition: write one such as f1<0.5, hops=3 or stop!=finished")
        return cls(form[1], form[2].replace("==", "="), form[3])

    def check(self, names: Iterable[str]) -> None:
        """Raise InputError unless the condition's name is one of `names`, those of the facts of all episodes."""
        if self.name not in (facts := set(names)):
            raise InputError(f"--where {self}: no episode has a {self.name}; there are {', '.join(sorted(facts))}")

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value}"

    def holds(self, facts: Mapping[str, Fact]) -> bool:
        """Whether the condition holds for an episode's facts. It does not for a fact that is missing or NaN.

        Raises InputError for a word that is compared by size, and for a number that is compared with a word.
        """
        fact = facts.get(self.name)
        if fact is None or fact != fact:
            return False
        if isinstance(fact, str):
            return self._holds_for_word(fact)
        number = self._number()
        if self.sign in _ORDERS:
            return _ORDERS[self.sign](fact, number)
        return (f"{fact:.3g}" == f"{number:.3g}") == (self.sign == "=")  # as it is shown

    def _holds_for_word(self, fact: str) -> bool:
        if self.sign in _ORDERS:
            raise InputError(f"--where {self}: {self.name} is a word, such as {fact!r}: compare it with = or !=")
        return (fact.casefold() == self.value.casefold()) == (self.sign == "=")

    def _number(self) -> float:
        try:
            number = float(self.value)
        except ValueError:
            number = math.nan
        if number != number:
            raise InputError(f"--where {self}: {self.name} is a number, and {self.value!r} is none")
        return number
