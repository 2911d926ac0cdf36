"""Which episodes to look at: by any number or label that is known of them.

    condition = Condition.of("f1<0.5")
    condition.holds(facts(episode, scores))

`trivium show RUN --where "f1<0.5" hops=3` shows the episodes of which all conditions hold.
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
    """What is known of an episode: its scores, the numbers and words of its task's truth, its task, sample, policy, why it
    stopped, its turns and calls, how many calls failed, and whose it is where it was served."""
    thread = episode.agent
    truth = {name: value for name, value in episode.task.truth.items() if isinstance(value, str | int | float)}
    served = {name: getattr(episode, name) for name in ("deployment", "session", "account") if getattr(episode, name)}
    return {
        **truth,
        **served,
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
        """InputError where `text` is none."""
        if not (form := _FORM.fullmatch(text)):
            raise InputError(f"--where {text!r} is no condition: write one such as f1<0.5, hops=3 or stop!=finished")
        return cls(form[1], form[2].replace("==", "="), form[3])

    def check(self, names: Iterable[str]) -> None:
        """InputError where nothing is called so; `names` are what is known of the episodes there are."""
        if self.name not in (known := set(names)):
            raise InputError(f"--where {self}: no episode has a {self.name}; there are {', '.join(sorted(known))}")

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value}"

    def holds(self, known: Mapping[str, Fact]) -> bool:
        """Whether it is so; of what nobody knows nothing is so. InputError for a word that is compared by size, or a number
        with a word."""
        fact = known.get(self.name)
        if fact is None or fact != fact:
            return False
        if isinstance(fact, str):
            return self._names(fact)
        number = self._number()
        if self.sign in _ORDERS:
            return _ORDERS[self.sign](fact, number)
        return (f"{fact:.3g}" == f"{number:.3g}") == (self.sign == "=")  # as it is shown

    def _names(self, fact: str) -> bool:
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
