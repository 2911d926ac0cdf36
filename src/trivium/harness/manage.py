"""The tools by which a policy manages its own context: prune it, or shard it over sub-agents."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from trivium.harness.base import Keep, Passage, Scene, Subagent, ToolError
from trivium.harness.tools import FunctionTool, tool


@tool(frees=True)
def prune_chunks(
    scene: Scene, keep: Annotated[list[str], Meta(description="handles of the chunks to keep, such as #3")]
) -> Keep:
    """Remove chunks from the view to free its budget. All chunks now in view go, except those named in `keep`."""
    # A list of what to keep is shorter and safer than one of what to drop: nano models never got one of those whole (0.00
    # against 0.39). Unknown handles in it are named and otherwise harmless; a list without one handle in view is refused,
    # since it would empty the view by mistake.
    refs = [ref.strip() for ref in keep]
    in_view = tuple(ref for ref in refs if ref in scene.handles)
    if not in_view:
        raise ToolError(f"none of {refs} is in view; in view are {' '.join(scene.handles) or 'no chunks'}")
    unknown = [ref for ref in refs if ref not in scene.handles]
    number = len(scene.handles) - len(set(in_view))
    note = f" Not in view: {' '.join(unknown)}." if unknown else ""
    return Keep(in_view, f"Pruned {number}.{note}")


def assign_task(agents: dict[str, Subagent]) -> FunctionTool:
    """The tool that hands an assignment to one of `agents` (name -> Subagent) and returns its one answer."""

    async def assign_task(
        scene: Scene,
        agent: Annotated[str, Meta(description="the sub-agent's name")],
        prompt: Annotated[str, Meta(description="the whole assignment: the agent sees nothing else")],
    ) -> str | list[Passage]:
        """Hand an assignment to a sub-agent and wait for its answer. Several calls in one turn run in parallel."""
        if agent.strip() not in agents:
            raise ToolError(f"there is no agent {agent!r}; there are {', '.join(agents)}")
        return await scene.spawn(agents[agent.strip()], prompt)

    plain = tool(seconds=math.inf)(assign_task)  # each sub-agent has its own limit
    return replace(plain, description=f"{plain.description} Sub-agents: {', '.join(agents)}.")
