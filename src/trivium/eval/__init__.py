"""Whether it was for the better: suites of tasks, paired statistics that say what may be believed."""

from trivium.eval.calibration import Calibration, calibration
from trivium.eval.paired import Interval, mean_interval, ratio_interval
from trivium.eval.pool import Pool
from trivium.eval.suite import Result, evaluate

__all__ = [
    "Calibration", "Interval", "Pool", "Result", "calibration", "evaluate", "mean_interval", "ratio_interval",
]  # fmt: skip
