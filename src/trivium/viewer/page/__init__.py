"""The web page: plain functions from a trace to HTML that stands alone, with its style and its script inside.

Nothing here opens a file or a port; whoever has a run or a store (`recipe/view.py`, a server) hands over what it read.
"""

from trivium.viewer.lanes import Bar, Lane, lanes
from trivium.viewer.page.cycles import cycles
from trivium.viewer.page.episode import Sheet, sheet
from trivium.viewer.page.html import Listing, beside_page, curves, episode_page, list_page
from trivium.viewer.page.index import Entry, Index, Query

__all__ = [
    "Bar", "Entry", "Index", "Lane", "Listing", "Query", "Sheet", "beside_page", "curves", "cycles", "episode_page", "lanes",
    "list_page", "sheet",
]  # fmt: skip
