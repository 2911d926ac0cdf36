"""Whether it was for the better: suites of tasks, and paired statistics that say what may be believed."""

from trivium.eval.paired import Interval, mean_interval, paired_interval
from trivium.eval.suite import Result, evaluate

__all__ = ["Interval", "Result", "evaluate", "mean_interval", "paired_interval"]
