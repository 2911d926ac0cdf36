"""What an episode was worth: async functions of an episode -> named scores, and their composition."""

from trivium.reward.base import (
    AnyScorer,
    GroupScorer,
    Scorer,
    ScorerError,
    Verdict,
    named,
    opinions,
    patience,
    refuse_unscored,
    score,
    verdicts,
)
from trivium.reward.citation import cited, counts_as, documents, gold_of, handles, repetition
from trivium.reward.composed import compose
from trivium.reward.retrieval import effort_penalty, f_beta, precision, recall, streak_penalty, turn_penalty

__all__ = [
    "AnyScorer", "GroupScorer", "Scorer", "ScorerError", "Verdict", "cited", "compose", "counts_as", "documents",
    "effort_penalty", "f_beta", "gold_of", "handles", "named", "opinions", "patience", "precision", "recall",
    "refuse_unscored", "repetition", "score", "streak_penalty", "turn_penalty", "verdicts",
]  # fmt: skip
