"""The routes at which people say what they thought, end a session, and have what is theirs deleted."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from trivium.serve.body import Body, Name
from trivium.serve.errors import missing
from trivium.serve.recorder import stored
from trivium.serve.service import caller_of, service_of

router = APIRouter(prefix="/v1")


class Feedback(Body):
    """A number about what was said: `target` is the id of a reply or of an episode."""

    target: Name
    name: str = Field("feedback", pattern=r"^[\w.-]{1,64}$")
    value: float = Field(allow_inf_nan=False)
    user: str | None = Field(None, max_length=256)


@router.post("/feedback", status_code=201)
async def feedback(body: Feedback, request: Request) -> dict[str, Any]:
    """Keep what somebody thought of a reply or of an episode of theirs, as a score of it."""
    keeper, caller = service_of(request).keeper, caller_of(request, body.user or "")
    target = body.target.removeprefix("chatcmpl-").removeprefix("resp_").removeprefix("msg_")
    if not await stored(lambda: keeper.score(caller, target, body.name, body.value)):
        raise missing(f"there is no reply and no episode {body.target!r:.80}")
    return {"target": body.target, "name": body.name, "value": body.value}


@router.post("/sessions/{session}/end")
async def end(session: str, request: Request, user: str = "") -> dict[str, Any]:
    """End a session now: what was said in it is an episode, whose id is told; none where there was nothing new to keep."""
    keeper, caller = service_of(request).keeper, caller_of(request, user)
    return {"session": session, "episode": await stored(lambda: keeper.seal(caller.account, session))}


@router.delete("/data")
async def forget(request: Request, user: str = "") -> dict[str, Any]:
    """Delete all that is kept of a user, or, where none is named, of the key and all its users: calls, episodes, scores."""
    service, caller = service_of(request), caller_of(request, user)
    deleted = await stored(lambda: service.keeper.forget(caller))
    service.desk.sessions.forget(caller)
    return {"deleted": deleted}
