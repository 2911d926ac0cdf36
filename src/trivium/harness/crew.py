"""Sub-agents that a policy creates itself: `create_subagent(name, system_prompt)` and `assign_task(agent, prompt)` (Kimi K2.5's
report, appendix E.8)."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from trivium.errors import InputError
from trivium.harness.base import Passage, Scene, Subagent, Tool, ToolError
from trivium.harness.tools import FunctionTool, tool
from trivium.trace import Task


class Crew:
    """A Place whose episodes each have their own sub-agents, by the names that the policy gives them. Its `tools` make them and
    hand them assignments.

    Each is made of `member`: its policy, frozen, its tools, window, sampling, limits and seconds; the system prompt that the
    policy writes stands behind the member's own. An assignment is a life of its own: several to one agent share nothing.
    At most `most` agents may be created in an episode, and `at_once` assignments of all episodes live at a time, the others
    wait, which is not their own time. With `recursive` the members have both tools too, as deep as `Limits.depth` says.
    `employ` changes the member and `at_once` while episodes go on; what lives already is not disturbed.
    """

    def __init__(self, member: Subagent, at_once: int = 100, most: int = 100, recursive: bool = False) -> None:
        if most < 1:
            raise InputError(f"a crew has room for an agent at least, not for {most}")
        self.most, self.recursive = most, recursive
        self.desks = Desks(at_once)
        self.employ(member)

    def employ(self, member: Subagent, at_once: int | None = None) -> None:
        """Who answers from the next assignment on, and how many at once. Raises InputError for a member that has a place of its
        own and shall assign further: its agents would be nobody's."""
        if self.recursive and member.harness.place is not None:
            raise InputError("a member of a recursive crew creates agents in the crew's place: its harness needs none")
        self.member = member
        if at_once is not None:
            self.desks.resize(at_once)

    @property
    def tools(self) -> list[Tool]:
        """The two tools, for the harness whose place this is."""
        return [create_subagent, _assign]

    async def open(self, task: Task, snapshot: str = "") -> OpenCrew:
        """The crew of one episode; a snapshot is its agents, written as JSON."""
        return OpenCrew(self, json.loads(snapshot) if snapshot else {})

    def subagent(self, system_prompt: str) -> Subagent:
        """A member that was told `system_prompt`."""
        harness = self.member.harness
        if self.recursive:
            harness = harness.with_tools([*harness.tools.values(), create_subagent, _assign_from_its_desk])
        return replace(self.member, harness=harness.with_prompt(f"{harness.prompt}\n\n{system_prompt}".strip()))


class OpenCrew:
    """One episode's agents: `agents` maps their names to their system prompts."""

    def __init__(self, crew: Crew, agents: dict[str, str]) -> None:
        self.crew, self.agents = crew, agents

    async def snapshot(self) -> str:
        return json.dumps(self.agents)

    async def close(self) -> None:
        """Nothing is held: every assignment ends with its turn."""

    def create(self, name: str, system_prompt: str) -> None:
        """Raises ToolError for a name that is empty or taken, and where there are too many."""
        if not name:
            raise ToolError("a sub-agent needs a name to be assigned to by")
        if name in self.agents:
            raise ToolError(f"there is an agent {name!r} already: assign to it, or take another name")
        if len(self.agents) >= self.crew.most:
            raise ToolError(f"there are {len(self.agents)} agents already, as many as there may be: assign to one of them")
        self.agents[name] = system_prompt

    def find(self, name: str) -> Subagent:
        """Raises ToolError for an agent that was never created."""
        if name not in self.agents:
            there = f"there are {', '.join(self.agents)}" if self.agents else "there is none: create it first"
            raise ToolError(f"there is no agent {name!r}; {there}")
        return self.crew.subagent(self.agents[name])


class Desks:
    """As many as may work at once; the others wait in the order in which they came. The number may change at any time."""

    def __init__(self, number: int) -> None:
        self.busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.resize(number)

    def resize(self, number: int) -> None:
        """Raises InputError for a number at which nobody could ever work."""
        if number < 1:
            raise InputError(f"at least one sub-agent works at a time, not {number}")
        self.number = number
        self._call()

    @asynccontextmanager
    async def __call__(self) -> AsyncGenerator[None]:
        """A desk, once one is free."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._call()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self.busy -= 1
            self._call()

    def _call(self) -> None:
        while self._waiting and self.busy < self.number:
            if not (turn := self._waiting.popleft()).done():
                self.busy += 1
                turn.set_result(None)


def _crew_of(scene: Scene) -> OpenCrew:
    if not isinstance(scene.place, OpenCrew):
        raise InputError("these tools need a harness whose place is their Crew: Harness(..., place=crew)")
    return scene.place


@tool
def create_subagent(
    scene: Scene,
    name: Annotated[str, Meta(description="what to assign to it by")],
    system_prompt: Annotated[str, Meta(description="who it is and how it works")],
) -> str:
    """Create a sub-agent with its own context. It can be assigned any number of tasks, also in the same turn."""
    # calls of a turn begin in their order, and this one ends before the next begins: nothing is awaited in between
    _crew_of(scene).create(name.strip(), system_prompt.strip())
    return "Created."


def _assigning(wait: bool) -> FunctionTool:
    async def assign_task(
        scene: Scene,
        agent: Annotated[str, Meta(description="the name of a sub-agent that was created")],
        prompt: Annotated[str, Meta(description="the whole assignment: the agent sees nothing else")],
    ) -> str | list[Passage]:
        """Hand a task to a sub-agent and wait for its one answer. Several calls in one turn run in parallel."""
        crew = _crew_of(scene)
        subagent = crew.find(agent.strip())
        async with crew.crew.desks() if wait else nullcontext():
            return await scene.spawn(subagent, prompt.strip())

    return tool(seconds=math.inf)(assign_task)


_assign, _assign_from_its_desk = _assigning(wait=True), _assigning(wait=False)
"""A member that assigns further keeps its desk for those whom it waits for: else they might wait for each other."""
