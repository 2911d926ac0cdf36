"""Small Python code as values: functions of lines of words, modules of functions, and what they return when they are called.

The vocabulary of verbs, parameters, operators and numbers is closed; the names of functions and modules are invented, and
held-out projects have words of their own (`trivium.tasks.names`). So a small model can learn to write the code, and has to copy
the names.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trivium.tasks import names

VERBS = tuple("count sum scale rank weigh merge split score price check blend limit".split())
NOUNS = tuple("price fee tax cost rate size weight amount share bonus width depth".split())
OPERATORS = ("+", "-", "*")
COMPARISONS = ("<", ">", "<=", ">=")
CONSTANTS = tuple("LIMIT RATE BASE STEP SHARE BONUS".split())
PENDING = "raise NotImplementedError"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a function's body: words, and how deep it stands."""

    words: tuple[str, ...]
    depth: int = 1

    @property
    def text(self) -> str:
        return " ".join(self.words) + (":" if self.words[0] == "if" else "")

    def put(self, at: int, word: str) -> Line:
        return replace(self, words=(*self.words[:at], word, *self.words[at + 1 :]))


@dataclass(frozen=True, slots=True)
class Function:
    """A function with parameters and a body."""

    name: str
    parameters: tuple[str, ...]
    body: tuple[Line, ...]

    @property
    def head(self) -> str:
        return f"def {self.name}({', '.join(self.parameters)}):"

    @property
    def source(self) -> str:
        return "\n".join([self.head, *(f"{'    ' * line.depth}{line.text}" for line in self.body)]) + "\n"

    def put(self, at: int, line: Line) -> Function:
        return replace(self, body=(*self.body[:at], line, *self.body[at + 1 :]))


@dataclass(frozen=True, slots=True)
class Module:
    """A file: imports and constants at its top, then functions."""

    path: str
    functions: tuple[Function, ...]
    top: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py")

    @property
    def source(self) -> str:
        top = "".join(f"{line}\n" for line in self.top)
        return "\n\n".join([*([top] if top else []), *(function.source for function in self.functions)])

    def put(self, function: Function) -> Module:
        """With `function` in the place of the one of its name."""
        return replace(self, functions=tuple(function if f.name == function.name else f for f in self.functions))


class Names:
    """Invented words, none twice; those of `split` alone."""

    def __init__(self, rng: random.Random, split: names.Split) -> None:
        self.rng, self.split, self.taken = rng, split, set()

    def word(self) -> str:
        while True:
            word = names.word(self.rng, self.rng.choice(("city", "company", "product", "river")), self.split).lower()
            if word not in self.taken:
                self.taken.add(word)
                return word

    def function(self) -> str:
        return f"{self.rng.choice(VERBS)}_{self.word()}"


def number(rng: random.Random) -> str:
    return str(rng.randrange(2, 100))


def function(rng: random.Random, invented: Names) -> Function:
    """A function of one to three lines; every other one takes a parameter that it does not use."""
    parameters = tuple(rng.sample(NOUNS, rng.choice((2, 2, 3))))
    a, b = parameters[:2]
    operator, other = rng.choice(OPERATORS), rng.choice(OPERATORS)
    bodies = (
        [Line(("return", a, operator, b))],
        [Line(("return", a, operator, number(rng)))],
        [Line(("return", a, operator, b, other, number(rng)))],
        [Line(("total", "=", a, operator, b)), Line(("return", "total", other, number(rng)))],
        [
            Line(("if", a, rng.choice(COMPARISONS), number(rng))),
            Line(("return", a, operator, number(rng)), 2),
            Line(("return", b)),
        ],
    )
    return Function(invented.function(), parameters, tuple(rng.choice(bodies)))


def setting(rng: random.Random, invented: Names) -> Function:
    """A function without parameters that returns a number."""
    return Function(invented.function(), (), (Line(("return", number(rng))),))


def module(rng: random.Random, invented: Names, functions: int) -> Module:
    return Module(f"{invented.word()}.py", tuple(function(rng, invented) for _ in range(functions)))


def run(modules: Iterable[Module]) -> dict[str, Any]:
    """The names that all modules together define. Only generated code is run so: it does arithmetic and nothing else."""
    space: dict[str, Any] = {}
    for each in modules:
        exec("\n".join(line for line in each.source.split("\n") if "import" not in line), space)
    return space


def value(space: Mapping[str, Any], name: str, arguments: tuple[int, ...]) -> int | None:
    """What a call returns; None where it raises."""
    try:
        return space[name](*arguments)
    except (KeyError, TypeError, NameError, NotImplementedError):
        return None
