"""Context-1: an agent that searches, reads, prunes what it no longer needs, and returns a ranked list of documents.

Importing this room imports no torch; its class, AGENT, brings it when it is first asked for.
"""

from trivium.agents.search.reward import SearchReward
from trivium.agents.search.tools import search_tools

__all__ = ["AGENT", "SearchReward", "search_tools"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name != "AGENT":
        raise AttributeError(f"module 'trivium.agents.search' has no attribute {name!r}")
    from trivium.agents.search.recipe import Search

    return Search
