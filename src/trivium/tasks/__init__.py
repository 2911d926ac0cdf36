"""Where tasks come from, and how they are proven: generated worlds, BEIR folders, logs of questions."""

from trivium.tasks.beir import beir_tasks
from trivium.tasks.cloze import cloze_tasks
from trivium.tasks.projects import projects
from trivium.tasks.proof import contains_quote, mentions, prove
from trivium.tasks.world import Fact, World, query_for

__all__ = [
    "Fact", "World", "beir_tasks", "cloze_tasks", "contains_quote", "mentions", "projects", "prove", "query_for",
]  # fmt: skip
