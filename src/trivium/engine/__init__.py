"""A Policy made of nn: many requests in one batch, keys and values kept over turns and shared over a group's rollouts."""

from trivium.engine.engine import Engine

__all__ = ["Engine"]
