"""What an episode was worth: async functions of an episode -> named scores, their composition, what people's feedback is worth,
and detectors of what pays and should not."""

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
from trivium.reward.detectors import HACKS, Detector, Finding, disbelieve, quarantined, watch
from trivium.reward.distill import (
    Distilled,
    Distiller,
    Heard,
    acceptance,
    distilled,
    distiller,
    follow_up,
    judged_follow_up,
    keep_rate,
    outcome,
    should_show,
    vote,
)
from trivium.reward.judges import RUBRICS, Graded, Judge, Pairwise, Rubric
from trivium.reward.parallel import Parl, annealed, assigned
from trivium.reward.penalties import effort_penalty, turn_penalty
from trivium.reward.tables import table_score, table_scores
from trivium.reward.toggle import Toggle, budgets, sampled_tokens

__all__ = [
    "AnyScorer", "Detector", "Distilled", "Distiller", "Finding", "Graded", "GroupScorer", "HACKS", "Heard", "Judge",
    "Pairwise", "Parl", "RUBRICS", "Rubric", "Scorer", "ScorerError", "Toggle", "Verdict", "acceptance", "annealed",
    "assigned", "budgets", "compose", "disbelieve", "distilled", "distiller", "effort_penalty", "follow_up",
    "judged_follow_up", "keep_rate", "opinions", "outcome", "patience", "quarantined", "refuse_unscored",
    "sampled_tokens", "score", "scorer_name", "should_show", "table_score", "table_scores", "turn_penalty", "verdicts",
    "vote", "watch",
]  # fmt: skip
