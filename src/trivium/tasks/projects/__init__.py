"""Generated Python projects with something to change: from one edit to sessions that do not fit into a small window.

tasks = projects(100, grades=(0, 1), seed=0)
tasks[0].prompt                 "In varholm.py, count_mirla uses tax. It should use fee."
tasks[0].truth["files"]         the project as it is found, path -> text
tasks[0].truth["tests"]         hidden tests, of which some fail now and all pass after `truth["change"]`
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from trivium.errors import InputError
from trivium.tasks import names
from trivium.tasks.projects.code import Names
from trivium.tasks.projects.draft import task
from trivium.tasks.projects.kinds import GRADES
from trivium.trace.task import Task

__all__ = ["GRADES", "projects"]


def projects(count: int, grades: Sequence[int] = (0, 1), seed: int = 0, split: names.Split = "train") -> list[Task]:
    """`count` tasks, no two alike, of the grades in turn; equal arguments give equal tasks on any machine.

    A task's `truth` holds

        files     the project before the change, path -> text
        tests     hidden test files, path -> text
        expected  the ids of the tests that must pass
        change    whole files after the true change, path -> text
        edits     the same as exact replacements in order: path, name (of the function), old, new
        clues     files that tell what the prompt leaves out
        facts     words of the edit that clues tell, clue -> words; none but in grade 6
        grade     0 one edit, all of it told; 1 one edit, and the file or the right word has to be found; 2 a missing function,
                  a new parameter; 3 two edits, a rename or a named constant in several places; 4 a list of five to seven;
                  5 one of ten to fourteen; 6 one edit that needs a number from each of three to five files
        kind      what was drawn: value, operator, name, fill, comment, test, two, add, parameter, rename, constant, notes,
                  gather

    Raises InputError for a grade that there is not.
    """
    if not grades or not set(grades) <= set(GRADES):
        raise InputError(f"projects are of the grades {min(GRADES)} to {max(GRADES)}, not {tuple(grades)}")
    rng = random.Random(f"projects {split} {seed} {tuple(grades)}")
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        grade = grades[len(tasks) % len(grades)]
        if made := _one(rng, f"{split}/{seed}/{len(tasks)}", grade, split):
            tasks.setdefault(made.truth["tests"]["tests/test_hidden.py"], made)
    return list(tasks.values())


def _one(rng: random.Random, id: str, grade: int, split: names.Split) -> Task | None:
    draft = rng.choice(GRADES[grade])(rng, Names(rng, split))
    return task(rng, draft, id, grade) if draft else None
