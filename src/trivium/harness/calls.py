"""One turn's calls, until their results enter the view: each runs alone, and fails alone (law 8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trivium.errors import PlaceError, PolicyError
from trivium.harness.base import Keep, Limits, Passage, Result, Scene, ToolError
from trivium.harness.toolset import Toolset, choice
from trivium.policy import ToolCall
from trivium.trace import Call, Fault

if TYPE_CHECKING:
    from trivium.harness.life import Life


@dataclass(slots=True)
class Outcome:
    """What came of one call, until the turn barrier puts it into the view in call order. `children` are the lives of the
    sub-agents that it assigned something to. Where the episode's place is `broken`, nothing can go on."""

    call: Call
    result: Result = ""
    broken: PlaceError | None = None
    children: list[Life] = field(default_factory=list)

    @classmethod
    def of(cls, id: str, turn: int, request: ToolCall) -> Outcome:
        """Of a call as it was asked for, which has failed already where it cannot be read."""
        fault = "arguments" if request.error else ""
        return cls(Call(id, turn, request.name, request.arguments, error=request.error, fault=fault))

    def fail(self, error: str, fault: Fault) -> None:
        self.call.error, self.call.fault = error.encode(errors="replace").decode(), fault


def refuse_beyond(outcomes: list[Outcome], limits: Limits) -> None:
    """Calls of a turn beyond the limit fail."""
    for each in outcomes[limits.calls :]:
        each.fail(each.call.error or f"at most {limits.calls} calls in one turn", "arguments")


async def answer(outcome: Outcome, toolset: Toolset, scene: Scene, limits: Limits, full: bool) -> None:
    """Run one call in its `scene`. In a `full` window only tools that free room run. Whatever goes wrong is data on the call,
    unless the whole turn is cancelled."""
    call = outcome.call
    call.began = time.time()
    try:
        tool = toolset.find(call.name)
        if full and not tool.frees:
            raise ToolError(f"the window is nearly full: {choice(toolset.freeing)}")
        seconds = limits.tool_seconds if tool.seconds is None else tool.seconds
        try:
            async with asyncio.timeout(seconds) as deadline:
                outcome.result = _result(call.name, await tool(scene, call.arguments))
        except TimeoutError:
            if not deadline.expired():
                raise
            outcome.fail(f"{call.name} took longer than {seconds:g} s", "timeout")
    except ToolError as error:
        outcome.fail(str(error) or f"{call.name} failed", error.fault)
    except asyncio.CancelledError:
        if cancelled():
            outcome.fail(f"{call.name} was cancelled with its turn", "aborted")
            raise
        outcome.fail(f"{call.name} failed: what it waited for was cancelled", "environment")
    except PlaceError as error:
        outcome.broken = error
        outcome.fail(f"{call.name} failed: {error}", "environment")
    except Exception as error:  # a tool's bug is data on its thread; it must not cancel its siblings
        fault = "provider" if isinstance(error, PolicyError) else "environment"
        outcome.fail(f"{call.name} failed: {type(error).__name__}: {error}", fault)
    finally:
        call.ended = time.time()


def cancelled() -> bool:
    """Whether it was the running task that somebody cancelled, and not only what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _result(name: str, result: Any) -> Result:
    """What a tool returned, as a policy can be shown it. Raises ToolError for anything else, which is the tool's own bug."""
    if isinstance(result, str | Keep):
        return result
    passages = list(result) if isinstance(result, Iterable) else [result]
    if wrong := [type(each).__name__ for each in passages if not isinstance(each, Passage)]:
        of = "" if passages == [result] else f"{type(result).__name__} of "
        raise ToolError(f"{name} must return text or a list of Passage, not {of}{wrong[0]}", "environment")
    return passages
