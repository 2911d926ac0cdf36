"""Wide and simple tables of real facts: countries, as the countryinfo package has them (`pip install trivium[facts]`).

documents = country_documents()                        # a page per country, a sentence per fact
tasks = country_tasks("wide", 20, ((5, 2),))           # "1. What is the capital of Peru? 2. How many people ..."
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from trivium.corpus.base import Document
from trivium.errors import InputError, Unsupported
from trivium.tasks.proof import mentions
from trivium.tasks.tables import Link, table
from trivium.trace.episode import Task

FACTS = {
    "capital": ("The capital of {s} is {o}.", "What is the capital of {s}?", "exact"),
    "population": ("{s} has a population of {o}.", "How many people live in {s}?", "number"),
    "area": ("The area of {s} is {o} square kilometres.", "How many square kilometres has {s}?", "number"),
    "subregion": ("{s} lies in {o}.", "In which part of the world is {s}?", "exact"),
    "demonym": ("Somebody from {s} is called {o}.", "What are people from {s} called?", "exact"),
}
"""Fact -> how a page states it, how a cell asks for it, how answers are compared."""


@lru_cache
def countries() -> dict[str, dict[str, str]]:
    """Country -> fact -> value, of those countries that have all of them. Unsupported without the package."""
    try:
        from countryinfo import all_countries
    except ImportError as error:
        raise Unsupported("real facts need the countryinfo package: pip install trivium[facts]") from error
    known = {}
    for country in all_countries():
        info: dict[str, Any] = dict(country.info())
        values = {fact: str(info.get(fact) or "") for fact in FACTS}
        if all(values.values()) and not mentions(values["capital"], info["name"]):  # as Singapore's is
            known[info["name"]] = values
    return dict(sorted(known.items()))


def country_documents() -> list[Document]:
    """A document for each fact, titled by its country."""
    return [
        Document(f"{name}.{number}", name, FACTS[fact][0].format(s=name, o=value))
        for name, values in countries().items()
        for number, (fact, value) in enumerate(values.items())
    ]


def country_tasks(kind: str, count: int, shapes: Sequence[tuple[int, int]], seed: int = 0) -> list[Task]:
    """`count` tables of that kind, no two alike, their shapes (rows, columns) drawn at random. Raises InputError for a shape
    that there are not the countries or facts for."""
    rng, known, tasks = random.Random(f"countries {kind} {seed}"), countries(), {}
    if wrong := [shape for shape in shapes if not (1 <= shape[0] <= len(known) and 1 <= shape[1] <= len(FACTS))]:
        raise InputError(f"a table of countries has up to {len(known)} rows and {len(FACTS)} columns, not {wrong[0]}")
    for _ in range(50 * count + 100):
        if len(tasks) == count:
            return list(tasks.values())
        rows, columns = rng.choice(shapes)
        names, facts = rng.sample(list(known), rows), rng.sample(list(FACTS), columns)
        cells = [[_link(name, fact) for fact in facts] for name in names]
        task = table(f"countries/{kind}-{seed}-{len(tasks)}", kind, cells, [FACTS[fact][2] for fact in facts])
        tasks.setdefault(task.prompt, task)
    raise InputError(f"there are no {count} different tables of these shapes: ask for fewer")


def _link(name: str, fact: str) -> Link:
    return {
        "subject": name, "relation": fact, "keyword": fact, "object": countries()[name][fact],
        "doc": f"{name}.{list(FACTS).index(fact)}", "question": FACTS[fact][1].format(s=name),
    }  # fmt: skip
