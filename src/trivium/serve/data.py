"""The routes at which people say what they thought, end a session, and have what is theirs deleted."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from trivium.errors import InputError
from trivium.serve.body import Body, Name
from trivium.serve.errors import invalid
from trivium.serve.recorder import stored
from trivium.serve.service import caller_of, service_of
from trivium.trace import Feedback, FeedbackKind

router = APIRouter(prefix="/v1")


class Said(Body):
    """What somebody did with what was said: `target` is the id of a reply or of an episode, and `key` the client's own name for
    this, by which it is kept once, however often it is sent. Which kind has a value and which a text: docs/feedback.md."""

    target: Name
    kind: FeedbackKind = "vote"
    value: float | None = Field(None, allow_inf_nan=False)
    text: str | None = None
    name: str = Field("", pattern=r"^[\w.-]{0,64}$")
    time: float = Field(0.0, ge=0, allow_inf_nan=False)
    original: str = ""
    key: str | None = Field(None, pattern=r"^[!-~]{1,256}$")
    user: str | None = Field(None, max_length=256)

    def feedback(self) -> Feedback:
        """Raises ApiError for what nobody can have done."""
        needed = "text" if self.kind in ("edit", "follow_up") else "value"
        if getattr(self, needed) is None:
            raise invalid(f"feedback of kind {self.kind} needs a {needed}")
        if "\x00" in f"{self.target}{self.text}{self.original}":
            raise invalid("a text holds letters, and no NUL")
        target = self.target.removeprefix("chatcmpl-").removeprefix("resp_").removeprefix("msg_")
        try:
            return Feedback(
                self.key or uuid.uuid4().hex, target, self.kind, self.value or 0.0, self.text or "", self.time,
                name=self.name, original=self.original,
            )  # fmt: skip
        except InputError as error:
            raise invalid(str(error)) from error


@router.post("/feedback", status_code=201)
async def feedback(body: Said, request: Request, response: Response) -> dict[str, Any]:
    """Keep what somebody did with a reply or an episode of theirs: 201 where it is new, 200 where it was said before."""
    keeper, caller = service_of(request).keeper, caller_of(request, body.user or "")
    said = body.feedback()
    new = await stored(lambda: keeper.hear(caller, said))
    response.status_code = 201 if new else 200
    return {"key": said.id, "target": body.target, "kind": body.kind, "new": new}


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
