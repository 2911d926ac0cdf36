"""Whether it was for the better: suites of tasks, paired statistics that say what may be believed, rollouts fused."""

from trivium.eval.fuse import Fused, attempt_fused, fuse, mean_length
from trivium.eval.paired import Interval, mean_interval, ratio_interval
from trivium.eval.pool import Pool
from trivium.eval.suite import Result, evaluate

__all__ = [
    "Fused", "Interval", "Pool", "Result", "attempt_fused", "evaluate", "fuse", "mean_interval", "mean_length",
    "ratio_interval",
]  # fmt: skip
