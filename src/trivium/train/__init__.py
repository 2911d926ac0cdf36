"""How the policy changes: an algorithm is (credit, loss, normaliser); batches; the learner; checkpoints."""

from trivium.train.algorithms import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    RFT,
    SFT,
    TABLE,
    Algorithm,
    Composer2,
    DrGRPO,
    Kimi,
)
from trivium.train.batch import Batch, Group
from trivium.train.checkpoint import Checkpoints, Loaded
from trivium.train.feedback import Feedback, Hint, Turn, lesson
from trivium.train.learner import Learner, Step
from trivium.train.settings import AdamW, Compute

__all__ = [
    "CISPO", "DAPO", "GRPO", "GSPO", "RFT", "SFT", "TABLE", "AdamW", "Algorithm", "Batch", "Checkpoints", "Composer2",
    "Compute", "DrGRPO", "Feedback", "Group", "Hint", "Kimi", "Learner", "Loaded", "Step", "Turn", "lesson",
]  # fmt: skip
