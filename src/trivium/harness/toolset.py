"""The tools on offer to one policy, and what it is advised to do with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trivium.errors import InputError
from trivium.harness.base import Tool, ToolError
from trivium.policy.message import Message


@dataclass(frozen=True, slots=True)
class Toolset:
    """Tools by their names, and their `specs` in the same order: the tools as the OpenAI API describes them."""

    tools: dict[str, Tool]
    specs: list[Message]

    @classmethod
    def of(cls, tools: Iterable[Tool]) -> Toolset:
        """Raises InputError for what is no list of tools, and for tools that a policy could not tell apart."""
        if isinstance(tools, Tool) or not isinstance(tools, Iterable):
            raise InputError(f"a harness takes a list of tools: write Harness([{_name(tools)}], ...)")
        tools = list(tools)
        for each in tools:
            if isinstance(each, type) or not isinstance(each, Tool):
                raise InputError(f"{_name(each)} is no tool: put @tool before it")
        if len({each.name for each in tools}) != len(tools):
            raise InputError(f"two tools share a name: {sorted(each.name for each in tools)}")
        return cls({each.name: each for each in tools}, [_spec(each) for each in tools])

    def only(self, names: Sequence[str]) -> list[Tool]:
        """Those that a task offers. Raises InputError for one that is not here."""
        if missing := [name for name in names if name not in self.tools]:
            there = ", ".join(self.tools) or "none"
            raise InputError(f"the task offers a tool {missing[0]!r} that its harness has not; there are {there}")
        return [self.tools[name] for name in dict.fromkeys(names)]

    def find(self, name: str) -> Tool:
        """Raises ToolError for a tool that is not on offer."""
        if name not in self.tools:
            raise ToolError(f"there is no tool {name!r}; there are {', '.join(self.tools) or 'none'}")
        return self.tools[name]

    @property
    def freeing(self) -> list[str]:
        """The names of those that free room in the view."""
        return [name for name, tool in self.tools.items() if tool.frees]

    @property
    def advice(self) -> str:
        """What a policy is advised when its window fills: to free room with the tools there are, or to answer."""
        return f"{choice([name.strip('_').partition('_')[0] for name in self.freeing]).capitalize()}."


def choice(ways: Sequence[str]) -> str:
    """What a policy may do when its window fills: one of `ways`, or answer."""
    return f"{', '.join(ways)} or answer" if ways else "answer"


def _spec(tool: Tool) -> Message:
    """The tool's spec. Raises InputError for one that does not name it, or is no JSON."""
    spec = tool.spec()
    try:
        json.dumps(spec)
        name = spec["function"]["name"]
    except (TypeError, KeyError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"the spec of tool {tool.name} is not as the OpenAI API has it ({reason})") from error
    if name != tool.name:
        raise InputError(f"tool {tool.name} is {name} in its spec: a policy would call it by that name")
    return spec


def _name(thing: Any) -> str:
    return getattr(thing, "__name__", None) or getattr(thing, "name", None) or repr(thing)
