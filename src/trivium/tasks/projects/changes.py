"""Changes of one line: what is wrong in a function, the words that ask for what is right, and the replacement."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trivium.tasks.projects.code import COMPARISONS, NOUNS, OPERATORS, PENDING, Function, Line, Module, number

TOLD = (
    "{f} in {p} must use {new} instead of {old}.",
    "In {p}, {f} uses {old}. It should use {new}.",
    "Replace {old} with {new} in {f}, {p}.",
    "{p}: {f} has {old} where {new} belongs.",
)
UNPLACED = (
    "{f} must use {new} instead of {old}.",
    "{f} uses {old}. It should use {new}.",
    "Replace {old} with {new} in {f}.",
    "{f} has {old} where {new} belongs.",
)


@dataclass(frozen=True, slots=True)
class Edit:
    """In `path`, inside the function `name`, `old` becomes `new`; `old` stands once in the file at that time."""

    path: str
    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Slip:
    """One word of one function that is wrong: what was right, and what stands there instead."""

    kind: str
    right: str
    wrong: str
    function: Function
    """as it is before the change"""
    edit: Edit

    def say(self, template: str) -> str:
        return template.format(f=self.edit.name, p=self.edit.path, old=self.wrong, new=self.right)


def shown(line: Line) -> str:
    """A line as an exact replacement names it: from its last leading space on."""
    return f" {line.text}"


def slip(rng: random.Random, home: Module, right: Function) -> Slip | None:
    """One word of `right` made wrong, so that the wrong word stands once in the body; None where the draw found none."""
    at = rng.randrange(len(right.body))
    line = right.body[at]
    place = rng.randrange(len(line.words))
    found = _wrong(rng, line.words[place], right)
    if found is None:
        return None
    kind, wrong = found
    if any(wrong in each.words for each in right.body):
        return None
    changed = line.put(place, wrong)
    edit = Edit(home.path, right.name, shown(changed), shown(line))
    return Slip(kind, line.words[place], wrong, right.put(at, changed), edit)


def _wrong(rng: random.Random, word: str, function: Function) -> tuple[str, str] | None:
    """The kind of a word, and another of its kind."""
    if word.isdigit():
        return "value", number(rng)
    for kind, words in (("operator", OPERATORS), ("operator", COMPARISONS)):
        if word in words:
            return kind, rng.choice([other for other in words if other != word])
    others = [other for other in function.parameters if other != word]
    return ("name", rng.choice(others)) if word in NOUNS and others else None


def pending(home: Module, right: Function) -> Slip:
    """`right` without its last line: the request tells what it returns."""
    last = right.body[-1]
    empty = right.put(len(right.body) - 1, Line(tuple(PENDING.split())))
    edit = Edit(home.path, right.name, f" {PENDING}", shown(last))
    return Slip("fill", " ".join(last.words[1:]), PENDING, empty, edit)


def commented(function: Function, right: Function, at: int) -> Function:
    """`function` with a comment above its line `at` that says what is right there."""
    comment = Line(("#", *right.body[at].words), right.body[at].depth)
    return replace(function, body=(*function.body[:at], comment, *function.body[at:]))


def apply(files: dict[str, str], edits: Sequence[Edit]) -> dict[str, str] | None:
    """The files after the edits in order; None where an `old` does not stand in its file exactly once."""
    after = dict(files)
    for edit in edits:
        if after[edit.path].count(edit.old) != 1:
            return None
        after[edit.path] = after[edit.path].replace(edit.old, edit.new)
    return after


def several(draw: Callable[[], Slip | None], count: int) -> list[Slip]:
    """`count` slips in different functions."""
    slips: dict[str, Slip] = {}
    while len(slips) < count:
        if (drawn := draw()) and drawn.edit.name not in slips:
            slips[drawn.edit.name] = drawn
    return list(slips.values())
