"""Typed tools: a plain function with annotations is the schema, the check and the documentation of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, get_type_hints, overload

import msgspec

from trivium.errors import InputError
from trivium.harness.base import Keep, Passage, Result, Scene, ToolError


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool a policy can call. Make one with `@tool`. One that `frees` room in the view may be called when the window is
    nearly full; the first word of its name, as in prune_chunks, is the verb by which a policy is advised to use it."""

    name: str
    description: str
    arguments: type[msgspec.Struct]
    function: Callable[..., Result | Awaitable[Result]]
    frees: bool = False

    def spec(self) -> dict[str, Any]:
        """The tool as the OpenAI API describes it to a model."""
        (_, components) = msgspec.json.schema_components([self.arguments])
        schema = {k: v for k, v in components.pop(self.arguments.__name__).items() if k != "title"}
        if components:  # what the arguments are made of
            schema["$defs"] = components
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": schema}}

    async def __call__(self, scene: Scene, arguments: dict[str, Any]) -> Result:
        """Raises ToolError when the arguments do not fit the types, or the result is none that a policy can be shown."""
        try:
            checked = msgspec.convert(arguments, self.arguments)
        except msgspec.ValidationError as error:
            raise ToolError(f"{self.name}: {error}") from error
        result = self.function(scene, **{name: getattr(checked, name) for name in self.arguments.__struct_fields__})
        return self._shown(await result if inspect.isawaitable(result) else result)

    def _shown(self, result: Any) -> Result:
        if isinstance(result, str | Keep):
            return result
        passages = list(result) if isinstance(result, Iterable) else [result]
        if wrong := [type(each).__name__ for each in passages if not isinstance(each, Passage)]:
            of = "" if passages == [result] else f"{type(result).__name__} of "
            raise ToolError(f"{self.name} must return text or a list of Passage, not {of}{wrong[0]}")
        return passages


@overload
def tool(function: Callable[..., Any]) -> Tool: ...


@overload
def tool(*, frees: bool = False) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(function: Callable[..., Any] | None = None, *, frees: bool = False) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a Tool of `function(scene, ...)`, sync or async; the first paragraph of its docstring describes it to the model.
    Write `@tool`, or `@tool(frees=True)` for one that frees room in the view."""
    if function is None:
        return lambda function: replace(tool(function), frees=frees)
    if not getattr(function, "__name__", "").isidentifier():
        raise InputError(f"{function!r} has no name that a policy could call it by: write it with def")
    hints = get_type_hints(function, include_extras=True)
    scene, *parameters = inspect.signature(function).parameters.values() or (None,)
    if scene is None or hints.get(scene.name, Scene) is not Scene:
        raise InputError(f"tool {function.__name__}: its first argument is the Scene, before those that a policy gives")
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise InputError(f"tool {function.__name__}: name each argument, so that it can be checked")
    if missing := [p.name for p in parameters if p.name not in hints]:
        raise InputError(f"tool {function.__name__}: annotate {', '.join(missing)} so that its arguments can be checked")
    fields = [(p.name, hints[p.name]) if p.default is p.empty else (p.name, hints[p.name], p.default) for p in parameters]
    try:
        arguments = msgspec.defstruct(f"{function.__name__}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
        msgspec.json.schema_components([arguments])
    except TypeError as error:
        mutable = "default_factory" in str(error)  # which is msgspec's advice, for a class
        told = "a default that can change is one for all calls: give a tuple or None" if mutable else error
        raise InputError(f"tool {function.__name__}: {told}") from error
    described = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    return Tool(function.__name__, described, arguments, function)
