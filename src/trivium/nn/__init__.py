"""The network, defined once: the engine speaks with it and the learner changes it (law 4)."""

from trivium.nn.heap import give_back
from trivium.nn.lora import lora
from trivium.nn.network import Network, View
from trivium.nn.packed import Packed
from trivium.nn.shard import shard

__all__ = ["Network", "Packed", "View", "give_back", "lora", "shard"]
