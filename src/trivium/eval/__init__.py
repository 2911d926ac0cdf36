"""Whether it was for the better: suites of tasks, paired statistics of what may be believed, the gate that decides."""

from trivium.eval.calibration import Calibration, calibration
from trivium.eval.canary import Canary
from trivium.eval.gate import Decision, Evidence, Gate, refuse_weights
from trivium.eval.paired import Interval, mean_interval, ratio_interval
from trivium.eval.pool import Pool
from trivium.eval.suite import Result, evaluate

__all__ = [
    "Calibration", "Canary", "Decision", "Evidence", "Gate", "Interval", "Pool", "Result", "calibration", "evaluate",
    "mean_interval", "ratio_interval", "refuse_weights",
]  # fmt: skip
