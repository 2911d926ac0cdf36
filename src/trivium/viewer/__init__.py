"""What a person looks at: a run while it trains, its table, its curves, and its episodes."""

from trivium.viewer.curve import learning_curve
from trivium.viewer.curves import learning_curves
from trivium.viewer.episodes import episode_panel, legend, side_by_side
from trivium.viewer.live import Live
from trivium.viewer.panels import Labels, Panels
from trivium.viewer.screen import screen
from trivium.viewer.table import summary_table
from trivium.viewer.where import Condition, facts

__all__ = [
    "Condition", "Labels", "Live", "Panels", "episode_panel", "facts", "learning_curve", "learning_curves", "legend", "screen",
    "side_by_side", "summary_table",
]  # fmt: skip
