"""What the questions of generated worlds need of a window, beside what the recipe's window leaves: for `--dry-run`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from trivium.agents.search.teacher import Imperfection
from trivium.policy import Scripted
from trivium.trace import Segment, Task

if TYPE_CHECKING:
    from trivium.agents.search.recipe import Search

WIDE, COUNT = 8000, 128
"""Tokens of a window that no question fills, with the prompt of a small one, and how many questions are asked in it."""


def needs(recipe: Search) -> str:
    """By hops: tokens of the documents that a perfect script sees which never prunes and need not, and the room for documents
    that the recipe's window leaves beside the prompt, the calls and the usage lines of such an episode."""
    wide = replace(recipe, window=WIDE, eval_tasks=COUNT)
    rows = []
    for hops in sorted({task.truth["hops"] for task in wide.heldout_tasks}):
        tasks = [task for task in wide.heldout_tasks if task.truth["hops"] == hops]
        contexts = asyncio.run(_contexts(wide, tasks))
        whole = fmean(len(context.tokens) for context in contexts)
        documents = fmean(sum(s.stop - s.start for s in context.spans if s.kind == "chunk") for context in contexts)
        room = recipe.room.hard * recipe.room.budget - (whole - documents)
        rows.append(f"{hops} hops: documents of {documents:,.0f} tokens, room for {room:,.0f} ({room / documents:.2f})")
    return "\n           ".join(rows).replace("1 hops", "1 hop")


async def _contexts(recipe: Search, tasks: Sequence[Task]) -> list[Segment]:
    """The last context of each episode of a perfect script that never prunes."""
    script = recipe.script(tasks, replace(Imperfection.none(), prune=0.0))
    harness, policy = recipe.harness(), Scripted(script, recipe.renderer)
    episodes = await asyncio.gather(*(harness.run(task, policy) for task in tasks))
    return [episode.agent.segments[-1] for episode in episodes]
