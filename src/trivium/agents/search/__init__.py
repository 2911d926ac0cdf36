"""Context-1: an agent that searches, reads, prunes what it no longer needs, and returns a ranked list of documents."""

from trivium.agents.search.reward import SearchReward
from trivium.agents.search.tools import search_tools

__all__ = ["SearchReward", "search_tools"]
