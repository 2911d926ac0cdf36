"""What the bodies of all three dialects share: fields that nobody knows are refused (law 7), and some that change nothing here
are taken, because clients send them unasked."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from trivium.serve.errors import invalid

Name = Annotated[str, Field(min_length=1, max_length=256)]
Heat = Annotated[float, Field(ge=0, le=2)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Stops = Annotated[list[Stop], Field(max_length=16)]


class Body(BaseModel):
    """Refuses fields that it does not name."""

    model_config = ConfigDict(extra="forbid")


class Loose(BaseModel):
    """A part of a conversation: clients send back what they were told, and more."""

    model_config = ConfigDict(extra="ignore")


def refuse(model: BaseModel, **honoured: tuple[Any, ...]) -> None:
    """ApiError for an option that this server cannot honour: `honoured` are the values of each that change nothing."""
    for name, values in honoured.items():
        if (value := getattr(model, name)) not in values:
            raise invalid(f"{name} = {value!r:.80} cannot be honoured here: leave it out")


def function(name: str, description: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """A tool, as the chat API has it."""
    schema = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def text_of(content: Any, kinds: tuple[str, ...]) -> str:
    """The text of a message's content: text, nothing, or parts that all are text of one of `kinds`."""
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.get("type") not in kinds or not isinstance(part.get("text"), str):
            raise invalid(f"the content of a message is text here, and not a part of type {part.get('type')!r:.80}")
    return "".join(part["text"] for part in content)
