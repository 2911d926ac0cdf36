"""What the bodies of all three dialects share: fields that nobody knows are refused (law 7), and some that change nothing here
are taken, because clients send them unasked; and JSON that cannot be kept or told again is refused before anybody speaks."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trivium.serve.errors import invalid

Name = Annotated[str, Field(min_length=1, max_length=256)]
Heat = Annotated[float, Field(ge=0, le=2)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Stops = Annotated[list[Stop], Field(max_length=16)]


class Body(BaseModel):
    """Refuses fields that it does not name, and values that no store can hold."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _keepable(cls, data: Any) -> Any:
        if why := _fault(data):
            place = ".".join(_place(data)) or "the body"
            raise invalid(f"{place.encode(errors='replace').decode():.200} {why}")
        return data


class Loose(BaseModel):
    """A part of a conversation: clients send back what they were told, and more."""

    model_config = ConfigDict(extra="ignore")


def _fault(value: Any) -> str:
    """Why JSON cannot be kept or told again; empty where it can. Python reads more as JSON than it is."""
    try:
        msgspec.msgpack.encode(value)
        json.dumps(value, allow_nan=False)
    except RecursionError:
        return "is nested too deeply"
    except OverflowError:
        return "holds an integer of more than 64 bits"
    except UnicodeEncodeError as error:
        return f"holds half a character ({error.object[error.start]!r})"
    except ValueError:
        return "holds NaN or an infinity"
    return ""


def _place(value: Any, deep: int = 3) -> list[str]:
    """Where in a body the fault is, as far as a client has to look: a field, one of its messages or tools, a part of that."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts if deep else ():
        if _fault(part):
            return [str(name), *_place(part, deep - 1)]
    return []


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
