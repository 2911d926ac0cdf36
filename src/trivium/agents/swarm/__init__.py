"""Kimi K2.5's agent swarm: one trained orchestrator that decides by itself whether to split a task over frozen sub-agents.

Importing this room imports no torch; its class, AGENT, brings it when it is first asked for.
"""

from trivium.agents.swarm.reward import SwarmScore, truly_done

__all__ = ["AGENT", "SwarmScore", "truly_done"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name != "AGENT":
        raise AttributeError(f"module 'trivium.agents.swarm' has no attribute {name!r}")
    from trivium.agents.swarm.recipe import Swarm

    return Swarm
