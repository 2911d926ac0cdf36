"""People use it: models and the agent behind an API, every call a trace by its exact tokens."""

from trivium.serve.options import Options

__all__ = ["Options"]
