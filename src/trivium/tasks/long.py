"""Long tasks: a document in parts that no window holds together, and cells whose facts stand far apart in it.

`truth["parts"]` is the document, part by part; a tool shows one part at a time (`parts_tool`). The rest is a table's
(`tasks.tables`), the `doc` of each link its part, `part-3`.
"""

from __future__ import annotations

import random
from typing import Annotated

from msgspec import Meta

from trivium.errors import InputError
from trivium.harness import FunctionTool, Scene, ToolError, tool
from trivium.tasks.tables import table, table_tasks
from trivium.tasks.world import World
from trivium.trace.episode import Task

CELLS = 6


def long_tasks(world: World, count: int, parts: int = 12, seed: int = 0) -> list[Task]:
    """`count` tasks on the whole world as one document in so many parts, each with `CELLS` cells, no two of one part. Raises
    InputError for parts too few to ask about, and where the world has not so many tasks."""
    if not CELLS <= parts <= len(world.documents):
        raise InputError(f"a document of {len(world.documents)} passages has {CELLS} to as many parts, not {parts}")
    rng = random.Random(f"long {world.name} {seed}")
    size = -(-len(world.documents) // parts)
    places = {document.id: number // size for number, document in enumerate(world.documents)}
    texts = [f"{document.title}: {document.text}" for document in world.documents]
    pages = ["\n".join(texts[at : at + size]) for at in range(0, len(texts), size)]
    pool = [task.truth["links"][0] for task in table_tasks(world, "cell", 40, ((1, 1),), seed)]
    tasks = {}
    for _ in range(50 * count + 100):
        if len(tasks) == count:
            return list(tasks.values())
        apart = {places[link["doc"]]: link for link in rng.sample(pool, len(pool))}
        links = [{**link, "doc": f"part-{part + 1}"} for part, link in list(apart.items())[:CELLS]]
        if len(links) == CELLS == len({link["subject"] for link in links}):
            task = table(f"{world.name}/long-{seed}-{len(tasks)}", "long", [[link] for link in links])
            prompt = f"The document has {len(pages)} parts.\n{task.prompt}"
            tasks.setdefault(prompt, Task(task.id, prompt, {**task.truth, "parts": pages}))
    raise InputError(f"a world of {len(world.documents)} documents has no {count} different long tasks: make it larger")


def parts_tool() -> FunctionTool:
    """The tool that shows a part of the task's document."""

    @tool
    def read_part(scene: Scene, number: Annotated[int, Meta(description="which part, from 1 on")]) -> str:
        """Read one part of the document."""
        parts = scene.task.truth.get("parts", [])
        if not 1 <= number <= len(parts):
            raise ToolError(f"there is no part {number}; there are {len(parts)}")
        return parts[number - 1]

    return read_part
