"""What people did with what an agent made. A fact each: what it is worth is a `Score`, which a distiller gives later."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from trivium.errors import InputError

FeedbackKind = Literal["vote", "edit", "accept", "show", "follow_up", "outcome"]
"""What somebody did.

    vote       said what they think: `value` from -1 to 1
    edit       changed the answer: `text` is what it has become
    show       was shown what the agent suggests, or was spared it: `value` 1 or 0
    accept     took it, or turned it down: `value` 1 or 0
    follow_up  said something next: `text`
    outcome    saw what came of it, perhaps hours later: `value` is a number, and `name` says of what
"""

KINDS: tuple[FeedbackKind, ...] = get_args(FeedbackKind)
_TEXTS = ("edit", "follow_up")
_DECISIONS = ("show", "accept")


@dataclass(frozen=True, slots=True)
class Feedback:
    """One thing that somebody did with an episode. Appended, never changed.

    `id` is the giver's own name for it, by which the same thing is kept once, however often it is sent; it tells apart what is
    said to the episodes of one `account`. `time` is when it happened, in seconds since 1970; where it is 0.0 the store writes
    down when it came. `original` is what an edit began with, where that is not the episode's answer.
    """

    id: str
    episode: str
    kind: FeedbackKind
    value: float = 0.0
    text: str = ""
    time: float = 0.0
    account: str = ""
    name: str = ""
    original: str = ""

    def __post_init__(self) -> None:
        """Raises InputError for what nobody can have done."""
        if fault := _fault(self):
            raise InputError(f"feedback {self.id!r:.80} on {self.episode!r:.80}: {fault}")


def _fault(feedback: Feedback) -> str:
    if not feedback.id or not feedback.episode:
        return "it needs an id of its own and that of an episode"
    if feedback.kind not in KINDS:
        return f"its kind is one of {', '.join(KINDS)}, not {feedback.kind!r:.80}"
    if not math.isfinite(feedback.value) or not 0 <= feedback.time < math.inf:
        return f"value and time are finite numbers, not {feedback.value} and {feedback.time}"
    if feedback.kind == "vote" and not -1 <= feedback.value <= 1:
        return f"a vote goes from -1 to 1, and not to {feedback.value:g}"
    if feedback.kind in _DECISIONS and feedback.value not in (0, 1):
        return f"the value of {feedback.kind} is 1 or 0, not {feedback.value:g}"
    if feedback.kind not in _TEXTS and (feedback.text or feedback.original):
        return f"{feedback.kind} has a value, and no text"
    if feedback.kind in _TEXTS and feedback.value:
        return f"{feedback.kind} has a text, and no value"
    if feedback.kind == "outcome" and not feedback.name:
        return "an outcome has a name, which says of what"
    return ""


def in_order(feedback: Iterable[Feedback]) -> list[Feedback]:
    """In the order in which it happened, each once, however it came: late, twice, out of order."""
    return sorted({(each.account, each.id): each for each in feedback}.values(), key=lambda each: (each.time, each.id))


def is_same(given: Feedback, kept: Feedback) -> bool:
    """Whether `given` says again what is `kept`. Who names no time means the first one's."""
    return replace(given, time=given.time or kept.time) == kept
