"""A change before it is a task: the modules before and after it, and the hidden tests that tell the two apart."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trivium.tasks.projects.changes import Edit, apply
from trivium.tasks.projects.code import Function, Module, run, value
from trivium.trace.task import Task

HIDDEN = "tests/test_hidden.py"
_DRAWS = 60
"""Arguments tried until a function's wrong and right results differ; a slip that none of them shows is thrown away."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One change of one project.

    `edits` lead from `before` to `after`. `clues` are files that hold what the prompt leaves out, `texts` files beside the
    modules, `checks` lines of further hidden tests, each of which fails before the change, by the name of the test; `facts` are
    words of the edits that clues tell, by the clue.
    """

    kind: str
    prompt: str
    before: tuple[Module, ...]
    after: tuple[Module, ...]
    edits: tuple[Edit, ...]
    clues: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


def task(rng: random.Random, draft: Draft, id: str, grade: int) -> Task | None:
    """The draft as a task; None where its edits do not lead to its end, or no hidden test would fail before them."""
    files = {module.path: module.source for module in draft.before} | dict(draft.texts)
    right = {module.path: module.source for module in draft.after} | dict(draft.texts)
    tests, fixed = _tests(rng, draft)
    if not fixed or apply(files, draft.edits) != right:
        return None
    truth: dict[str, Any] = {
        "grade": grade,
        "kind": draft.kind,
        "files": dict(sorted(files.items())),
        "tests": {HIDDEN: _source(draft, tests)},
        "expected": [f"{HIDDEN}::{name}" for name in tests],
        "fixed": [f"{HIDDEN}::{name}" for name in tests if name in fixed],
        "change": {path: text for path, text in right.items() if files[path] != text},
        "edits": [asdict(edit) for edit in draft.edits],
        "clues": list(draft.clues),
        "facts": dict(draft.facts),
    }
    return Task(id, draft.prompt, truth)


def _tests(rng: random.Random, draft: Draft) -> tuple[dict[str, list[str]], set[str]]:
    """Test name -> its lines, for each function in the files that change and what the draft checks besides; and the tests that
    fail before the change, none where a slip shows in no call."""
    wrong, right = run(draft.before), run(draft.after)
    edited = {edit.path for edit in draft.edits}
    tests = {f"test_{name}": list(lines) for name, lines in draft.checks.items()}
    fixed = set(tests)
    for module in draft.after:
        for function in module.functions if module.path in edited else ():
            calls = _calls(rng, function, wrong, right)
            changed = any(edit.name == function.name for edit in draft.edits)
            if changed and not draft.checks and not calls[0][1]:
                return tests, set()
            fixed |= {f"test_{function.name}"} if calls[0][1] else set()
            tests[f"test_{function.name}"] = [equality(module, function.name, arguments, right) for arguments, _ in calls]
    return tests, fixed


def equality(module: Module, function: str, arguments: tuple[int, ...], space: dict[str, Any]) -> str:
    """The line of a test that calls a function of `module` and expects what it returns in `space`."""
    return f"assert {module.name}.{function}({', '.join(map(str, arguments))}) == {value(space, function, arguments)}"


def _calls(rng: random.Random, function: Function, wrong: dict, right: dict) -> list[tuple[tuple[int, ...], bool]]:
    """Three calls of a function as (arguments, whether they tell before from after), one that does first where there is any."""
    drawn = [tuple(rng.randrange(1, 100) for _ in function.parameters) for _ in range(_DRAWS)]
    calls = [(each, value(wrong, function.name, each) != value(right, function.name, each)) for each in drawn]
    calls.sort(key=lambda call: not call[1])
    return list(dict.fromkeys([calls[0], *calls[-2:]]))


def _source(draft: Draft, tests: Mapping[str, Sequence[str]]) -> str:
    named = {line.partition(".")[0].split()[-1].split("(")[-1] for lines in tests.values() for line in lines if "." in line}
    imports = "".join(f"import {module.name}\n" for module in draft.after if module.name in named)
    bodies = ("".join(f"    {line}\n" for line in lines) for lines in tests.values())
    return imports + "".join(f"\n\ndef {name}():\n{body}" for name, body in zip(tests, bodies, strict=True))
