"""What an episode was worth: async functions of an episode -> named scores, and their composition."""

from trivium.reward.base import (
    AnyScorer,
    GroupScorer,
    Scorer,
    ScorerError,
    Verdict,
    opinions,
    patience,
    refuse_unscored,
    score,
    scorer_name,
    verdicts,
)
from trivium.reward.composed import compose
from trivium.reward.penalties import effort_penalty, turn_penalty

__all__ = [
    "AnyScorer", "GroupScorer", "Scorer", "ScorerError", "Verdict", "compose", "effort_penalty", "opinions",
    "patience", "refuse_unscored", "score", "scorer_name", "turn_penalty", "verdicts",
]  # fmt: skip
