"""Where tasks are made and proven: generated worlds, BEIR folders, the warm-up's filter, the curriculum."""

from trivium.tasks.beir import beir_tasks
from trivium.tasks.cloze import cloze_tasks
from trivium.tasks.curriculum import two_phases
from trivium.tasks.filter import Scored, keep
from trivium.tasks.proof import prove, quoted, says
from trivium.tasks.world import Fact, World, query_for

__all__ = [
    "Fact", "Scored", "World", "beir_tasks", "cloze_tasks", "keep", "prove", "query_for", "quoted", "says", "two_phases",
]  # fmt: skip
