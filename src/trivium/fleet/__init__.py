"""Where parts run: in this process, or in equal worker processes on this machine."""

from trivium.fleet.local import Rank, launch

__all__ = ["Rank", "launch"]
