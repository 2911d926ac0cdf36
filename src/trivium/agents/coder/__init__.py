"""The coder (Composer 2): it reads, changes and runs code at a desk of its own, and goes on from its own summaries.

Importing this room imports no torch; its class, AGENT, brings it when it is first asked for.
"""

__all__ = ["AGENT"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name != "AGENT":
        raise AttributeError(f"module 'trivium.agents.coder' has no attribute {name!r}")
    from trivium.agents.coder.recipe import Coder

    return Coder
