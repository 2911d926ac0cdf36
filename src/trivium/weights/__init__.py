"""How weights travel from the learner to whoever speaks with them, and how we know that they arrived (law 10)."""

from trivium.weights.publish import Receiver, deliver, publish
from trivium.weights.publisher import Publisher
from trivium.weights.store import Entry, Probe, Unreachable
from trivium.weights.subscriber import Subscriber, Weights

__all__ = ["Entry", "Probe", "Publisher", "Receiver", "Subscriber", "Unreachable", "Weights", "deliver", "publish"]
