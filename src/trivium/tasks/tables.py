"""Tasks whose answer is a table, over a generated world: wide ones, which ask for much, and simple ones, which ask for one row.

    Fill the table. Answer each cell by its number.
    1. Who runs Brennix Holt? 2. In which city does Brennix Holt have its seat?
    3. Who runs Zolex Lorbank? 4. In which city does Zolex Lorbank have its seat?

Each line is a row, and its cells are numbered. No prompt says how to go about it; a wide table and a simple one differ in their
size alone. `truth` holds

    kind     "wide" or "simple"
    rows     the right table: key -> cells, as `reward.tables` reads it
    cells    number -> the key of its row and the number of its column
    documents  document -> what it states of the table, so that a cell may cite it
    links    one per cell in the order of their numbers: subject, relation, keyword, object, doc, and its `question`
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from trivium.errors import InputError
from trivium.tasks.relations import BY_KEY, RELATIONS, Relation
from trivium.tasks.world import Fact, World
from trivium.trace.episode import Task

WIDE = ((3, 2), (2, 3), (5, 1), (6, 1))
"""Rows and columns of the wide tables: five or six cells."""
SIMPLE = ((1, 1), (1, 2))


def table_tasks(world: World, kind: str, count: int, shapes: Sequence[tuple[int, int]], seed: int = 0) -> list[Task]:
    """`count` tasks of that kind, no two alike, their shapes (rows, columns) drawn at random. Raises InputError where the world
    is too small for so many."""
    rng, tasks = random.Random(f"{kind} {world.name} {seed}"), {}
    by_relation = _true_facts(world)
    for _ in range(50 * count + 1000):
        if len(tasks) == count:
            return list(tasks.values())
        id = f"{world.name}/{kind}-{seed}-{len(tasks)}"
        if task := _task(rng, by_relation, id, kind, *rng.choice(shapes)):
            tasks.setdefault(task.prompt, task)
    raise InputError(f"a world of {len(world.documents)} documents has no {count} different {kind} tables: make it larger")


def _true_facts(world: World) -> dict[str, dict[str, Fact]]:
    """Relation -> subject -> what is true of it."""
    facts: dict[str, dict[str, Fact]] = {relation.key: {} for relation in RELATIONS}
    for fact in world.facts:
        if not fact.former:
            facts[fact.relation][fact.subject] = fact
    return facts


def _task(rng: random.Random, facts: dict[str, dict[str, Fact]], id: str, kind: str, rows: int, columns: int) -> Task | None:
    """A table of that shape about entities of one kind; None where it would name a cell."""
    subject = rng.choice(RELATIONS).subject
    relations = [relation for relation in RELATIONS if relation.subject == subject]
    if len(relations) < columns:
        return None
    chosen = rng.sample(relations, columns)
    there = sorted(set.intersection(*(set(facts[relation.key]) for relation in chosen)))
    if len(there) < rows:
        return None
    keys = rng.sample(there, rows)
    cells = [[facts[relation.key][key] for relation in chosen] for key in keys]
    if {fact.object for row in cells for fact in row} & set(keys):
        return None
    asked = [rng.choice(relation.questions) for relation in chosen]
    links = [_link(fact, form) for row in cells for fact, form in zip(row, asked, strict=True)]
    lines = [
        " ".join(f"{n + 1}. {links[n]['question']}" for n in range(row * columns, (row + 1) * columns)) for row in range(rows)
    ]
    truth = {
        "kind": kind,
        "rows": {key: [fact.object for fact in row] for key, row in zip(keys, cells, strict=True)},
        "cells": {str(n + 1): [keys[n // columns], n % columns] for n in range(rows * columns)},
        "links": links,
        "documents": {fact.doc: fact.object for row in cells for fact in row},
    }
    return Task(id, "\n".join(["Fill the table. Answer each cell by its number.", *lines]), truth)


def _link(fact: Fact, form: str) -> dict[str, Any]:
    relation: Relation = BY_KEY[fact.relation]
    return {
        "subject": fact.subject, "relation": fact.relation, "keyword": relation.keyword, "object": fact.object,
        "doc": fact.doc, "question": form.format(x=fact.subject),
    }  # fmt: skip
