"""Deep tasks over a generated world: branches that are followed one step after the other, and meet late.

    Which was founded first: the company that makes the Varbit, the firm that finances Brennix Holt, or ...?

Each branch is two facts long (which company, and when it was founded), and only all of them together give the answer. `truth`
is that of a table with one cell (`tasks.tables`); `links` has the facts of the branches, two each.
"""

from __future__ import annotations

import random

from trivium.errors import InputError
from trivium.tasks.relations import BY_KEY, RELATIONS
from trivium.tasks.tables import NUMBER, Link, link_of, true_facts
from trivium.tasks.world import Fact, World
from trivium.trace.episode import Task

BRANCHES = 3
TO_COMPANY = tuple(relation.key for relation in RELATIONS if relation.object == "company")
"""The relations that lead to a company."""


def deep_tasks(world: World, count: int, branches: int = BRANCHES, seed: int = 0) -> list[Task]:
    """`count` different tasks of so many branches. Raises InputError where the world is too small for so many."""
    rng, facts, tasks = random.Random(f"deep {world.name} {seed}"), true_facts(world), {}
    for _ in range(50 * count + 1000):
        if len(tasks) == count:
            return list(tasks.values())
        if task := _task(rng, facts, f"{world.name}/deep-{seed}-{len(tasks)}", branches):
            tasks.setdefault(task.prompt, task)
    raise InputError(f"a world of {len(world.documents)} documents has no {count} different deep tasks: make it larger")


def _task(rng: random.Random, facts: dict[str, dict[str, Fact]], id: str, branches: int) -> Task | None:
    """One task; None where two branches lead to one company, or two companies are of one year."""
    first = [rng.choice(list(facts[rng.choice(TO_COMPANY)].values())) for _ in range(branches)]
    second = [facts["founded"][fact.object] for fact in first if fact.object in facts["founded"]]
    if min(len({fact.object for fact in second}), len({fact.subject for fact in second})) < branches:
        return None
    if {fact.subject for fact in first} & {fact.object for fact in first}:
        return None
    described = [rng.choice(BY_KEY[fact.relation].phrases).format(x=fact.subject) for fact in first]
    links: list[Link] = []
    for which, when in zip(first, second, strict=True):
        links += [link_of(fact, rng.choice(BY_KEY[fact.relation].questions)) for fact in (which, when)]
    oldest = min(second, key=lambda fact: int(fact.object)).subject
    truth = {"kind": "deep", "rows": {"first": [oldest]}, "cells": {"1": ["first", 0]}, "links": links, "documents": {}}
    question = f"Which was founded first: {', '.join(described[:-1])}, or {described[-1]}?"
    return Task(id, f"{NUMBER}\n1 {question}", truth)
