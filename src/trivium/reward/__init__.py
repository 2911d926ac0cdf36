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
from trivium.reward.judges import RUBRICS, Graded, Judge, Pairwise, Rubric
from trivium.reward.parallel import Parl, annealed, assigned
from trivium.reward.penalties import effort_penalty, turn_penalty
from trivium.reward.tables import table_score, table_scores
from trivium.reward.toggle import Toggle, budgets, sampled_tokens

__all__ = [
    "AnyScorer", "Graded", "GroupScorer", "Judge", "Pairwise", "Parl", "RUBRICS", "Rubric", "Scorer", "ScorerError",
    "Toggle", "Verdict", "annealed", "assigned", "budgets", "compose", "effort_penalty", "opinions", "patience",
    "refuse_unscored", "sampled_tokens", "score", "scorer_name", "table_score", "table_scores", "turn_penalty",
    "verdicts",
]  # fmt: skip
