"""Tasks whose answer is a table, over a generated world: wide ones, which ask for much, and simple ones, which ask for one row.

    Fill the table. Cite for each cell the passage that states it.
    1 Who runs Brennix Holt? 2 In which city does Brennix Holt have its seat?
    3 Who runs Zolex Lorbank? 4 In which city does Zolex Lorbank have its seat?

Each line is a row, and its cells are numbered; a small model copies a question best from behind one token that stands nowhere
else, so that there is no dot. No prompt says how to go about it; a wide table and a simple one differ in their
size alone. `truth` holds

    kind     "wide" or "simple"
    rows     the right table: key -> cells, as `reward.tables` reads it
    cells    number -> the key of its row and the number of its column
    documents  document -> what it states of the table, so that a cell may cite it
    match    how the cells of each column are compared; empty: by their words
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

WIDE = ((3, 2), (2, 3))
"""Rows and columns of the wide tables: several rows and several facts of each. Of six rows with one column, whose questions
differ in a name alone, a nano model copies the wrong name in every third (docs/log.md)."""
SIMPLE = ((1, 1), (1, 2))
NUMBER = "Fill the table. Answer each cell by its number."
CITE = "Fill the table. Cite for each cell the passage that states it."

Link = dict[str, Any]
"""One cell: subject, relation, keyword, object, doc, question."""


def table_tasks(world: World, kind: str, count: int, shapes: Sequence[tuple[int, int]], seed: int = 0) -> list[Task]:
    """`count` tasks of that kind, no two alike, their shapes (rows, columns) drawn at random. Raises InputError where the world
    is too small for so many."""
    rng, tasks = random.Random(f"{kind} {world.name} {seed}"), {}
    by_relation = true_facts(world)
    for _ in range(50 * count + 1000):
        if len(tasks) == count:
            return list(tasks.values())
        id = f"{world.name}/{kind}-{seed}-{len(tasks)}"
        if task := _task(rng, by_relation, id, kind, *rng.choice(shapes)):
            tasks.setdefault(task.prompt, task)
    raise InputError(f"a world of {len(world.documents)} documents has no {count} different {kind} tables: make it larger")


def true_facts(world: World) -> dict[str, dict[str, Fact]]:
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
    return table(id, kind, [[link_of(*cell) for cell in zip(row, asked, strict=True)] for row in cells], head=CITE)


def table(id: str, kind: str, rows: Sequence[Sequence[Link]], match: Sequence[str] = (), head: str = NUMBER) -> Task:
    """The task that asks for these cells, row by row; the first of a row names its key. `match` says how the cells of each
    column are compared (`reward.tables.KINDS`), `head` how to answer."""
    numbered = iter(range(1, 1 + sum(map(len, rows))))
    lines = [" ".join(f"{next(numbered)} {link['question']}" for link in row) for row in rows]
    places = [[row[0]["subject"], column] for row in rows for column in range(len(row))]
    links = [dict(link) for row in rows for link in row]
    truth = {
        "kind": kind,
        "rows": {row[0]["subject"]: [link["object"] for link in row] for row in rows},
        "match": list(match),
        "cells": {str(number): place for number, place in enumerate(places, 1)},
        "links": links,
        "documents": {link["doc"]: link["object"] for link in links if link["doc"]},
    }
    return Task(id, "\n".join([head, *lines]), truth)


def link_of(fact: Fact, form: str) -> Link:
    relation: Relation = BY_KEY[fact.relation]
    return {
        "subject": fact.subject, "relation": fact.relation, "keyword": relation.keyword, "object": fact.object,
        "doc": fact.doc, "question": form.format(x=fact.subject),
    }  # fmt: skip
