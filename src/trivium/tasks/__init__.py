"""Where tasks are made and proven: generated worlds, BEIR folders."""

from trivium.tasks.beir import beir_tasks
from trivium.tasks.cloze import cloze_tasks
from trivium.tasks.proof import prove, quoted, says
from trivium.tasks.world import Fact, World, query_for

__all__ = [
    "Fact", "World", "beir_tasks", "cloze_tasks", "prove", "query_for", "quoted", "says",
]  # fmt: skip
