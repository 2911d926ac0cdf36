"""How weights travel from the learner to whoever speaks with them, and how we know that they arrived (law 10)."""

from trivium.weights.publish import Subscriber, publish

__all__ = ["Subscriber", "publish"]
