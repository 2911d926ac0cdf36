"""Whether it was for the better: suites of tasks, paired statistics of what may be believed, the gate that decides."""

from trivium.eval.calibration import Calibration, calibration
from trivium.eval.canary import Canary
from trivium.eval.gate import Decision, Evidence, Gate, refuse_weights
from trivium.eval.paired import Interval, mean_interval, ratio_interval
from trivium.eval.pinned import PinnedSuite
from trivium.eval.pool import Pool
from trivium.eval.suite import Result, evaluate
from trivium.eval.trial import Trial, trial

__all__ = [
    "Calibration", "Canary", "Decision", "Evidence", "Gate", "Interval", "PinnedSuite", "Pool", "Result", "Trial",
    "calibration", "evaluate", "mean_interval", "ratio_interval", "refuse_weights", "trial",
]  # fmt: skip
