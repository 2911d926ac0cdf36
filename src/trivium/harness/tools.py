"""Tools of plain functions, whose annotations are the schema, the check and the documentation of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, get_type_hints, overload

import msgspec

from trivium.errors import InputError
from trivium.harness.base import Result, Scene, ToolError


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A Tool that calls a function. Make one with `@tool`."""

    name: str
    description: str
    arguments: type[msgspec.Struct]
    function: Callable[..., Result | Awaitable[Result]]
    seconds: float | None = None
    frees: bool = False

    def spec(self) -> dict[str, Any]:
        """The tool as the OpenAI API describes it to a model."""
        (_, components) = msgspec.json.schema_components([self.arguments])
        schema = {k: v for k, v in components.pop(self.arguments.__name__).items() if k != "title"}
        if components:  # what the arguments are made of
            schema["$defs"] = components
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": schema}}

    async def __call__(self, scene: Scene, arguments: dict[str, Any]) -> Result:
        """Raises ToolError when the arguments do not fit the types."""
        try:
            values = msgspec.convert(arguments, self.arguments)
        except msgspec.ValidationError as error:
            raise ToolError(f"{self.name}: {error}") from error
        result = self.function(scene, **{name: getattr(values, name) for name in self.arguments.__struct_fields__})
        return await result if inspect.isawaitable(result) else result


@overload
def tool(function: Callable[..., Any]) -> FunctionTool: ...


@overload
def tool(*, seconds: float | None = None, frees: bool = False) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None, *, seconds: float | None = None, frees: bool = False
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a Tool of `function(scene, ...)`, sync or async; the first paragraph of its docstring describes it to the model.

    Write `@tool`, or `@tool(seconds=..., frees=True)` for one with a deadline of its own, or one that frees room in the view.
    Raises InputError for a function that no policy could call, and for a deadline of a function that cannot be stopped.
    """
    if function is None:
        return lambda function: _tool(function, seconds, frees)
    return _tool(function, seconds, frees)


def _tool(function: Callable[..., Any], seconds: float | None, frees: bool) -> FunctionTool:
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise InputError(f"{function!r} has no name that a policy could call it by: write it with def")
    if seconds is not None and not (seconds > 0 and inspect.iscoroutinefunction(function)):
        raise InputError(f"tool {name}: only an async function can be stopped, after more than 0 seconds, not {seconds!r}")
    description = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    return FunctionTool(name, description, _arguments(name, function), function, seconds, frees)


def _arguments(name: str, function: Callable[..., Any]) -> type[msgspec.Struct]:
    """The type of what a policy gives, one field for each parameter behind the scene."""
    hints = get_type_hints(function, include_extras=True)
    scene, *parameters = inspect.signature(function).parameters.values() or (None,)
    if scene is None or hints.get(scene.name, Scene) is not Scene:
        raise InputError(f"tool {name}: its first argument is the Scene, before those that a policy gives")
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise InputError(f"tool {name}: name each argument, so that it can be checked")
    if missing := [p.name for p in parameters if p.name not in hints]:
        raise InputError(f"tool {name}: annotate {', '.join(missing)} so that its arguments can be checked")
    fields = [(p.name, hints[p.name]) if p.default is p.empty else (p.name, hints[p.name], p.default) for p in parameters]
    try:
        arguments = msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
        msgspec.json.schema_components([arguments])
    except TypeError as error:
        mutable = "default_factory" in str(error)  # which is msgspec's advice, for a class
        reason = "a default that can change is one for all calls: give a tuple or None" if mutable else error
        raise InputError(f"tool {name}: {reason}") from error
    return arguments
