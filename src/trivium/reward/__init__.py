"""What an episode was worth: async functions of an episode -> named scores, and their composition."""

from trivium.reward.base import Scorer, compose, named, opinions, score
from trivium.reward.citation import cited, counts_as, documents, gold_of, handles, repetition
from trivium.reward.retrieval import effort_penalty, f_beta, precision, recall, streak_penalty, turn_penalty

__all__ = [
    "Scorer", "cited", "compose", "counts_as", "documents", "effort_penalty", "f_beta", "gold_of", "handles", "named",
    "opinions", "precision", "recall", "repetition", "score", "streak_penalty", "turn_penalty",
]  # fmt: skip
