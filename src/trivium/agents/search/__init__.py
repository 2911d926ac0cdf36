"""Context-1: an agent that searches, reads, prunes what it no longer needs, and returns a ranked list of documents.

Importing this room imports no torch; `recipe`, `train` and `serve` bring it.
"""

from trivium.agents.search.reward import SearchReward
from trivium.agents.search.tools import search_tools

__all__ = ["SearchReward", "search_tools"]
