"""What people did -> what it was worth. Facts stay facts: a distiller is applied to them any number of times, and may change.

Each reads one kind of signal. What is not there is worth as little as the worst that could be there: in Cursor's traffic broken
calls were left out of the data, and clarifying questions left nothing to be judged by, and a policy learned to prefer both to
work that might be found bad (Composer's real-time RL, March 2026). So no policy gains by making a signal go away.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trivium.errors import InputError, TriviumError
from trivium.reward.judges import Judge, Rubric
from trivium.trace import Episode, Feedback, FeedbackKind, in_order

Reading = float | None
"""What a signal says, None where there is no signal."""
Read = Callable[[Episode, Sequence[Feedback]], Reading | Awaitable[Reading]]

SHOWN_ACCEPTED, SHOWN_REJECTED, NOT_SHOWN = 0.75, -0.25, 0.0
"""What a suggestion is worth. Shown with the chance p of being accepted, .75 p - .25 (1 - p) is above the 0 of silence exactly
where p is above a quarter: the threshold that Cursor's Tab is trained to keep."""


@dataclass(frozen=True, slots=True)
class Distiller:
    """One signal: `read` gives a number from `worst` to `best`, or None where people gave no such signal. Feedback comes to it
    in the order in which it happened."""

    name: str
    worst: float
    best: float
    read: Read

    def __post_init__(self) -> None:
        """Raises InputError for a name or a range that is none."""
        if not self.name or not -math.inf < self.worst < self.best < math.inf:
            raise InputError(f"a distiller has a name and goes from its worst to its best, not {self.name!r} and {self.worst:g}"
                             f" to {self.best:g}")  # fmt: skip

    async def __call__(self, episode: Episode, feedback: Sequence[Feedback]) -> Reading:
        """InputError where it says more than it can."""
        reading = self.read(episode, in_order(feedback))
        reading = await reading if inspect.isawaitable(reading) else reading
        if reading is not None and not self.worst <= reading <= self.best:
            raise InputError(f"{self.name} says {reading:g} of {episode.id}; it goes from {self.worst:g} to {self.best:g}")
        return reading


def distiller(name: str, worst: float, best: float) -> Callable[[Read], Distiller]:
    """Makes a distiller of a function of an episode and its feedback."""
    return lambda read: Distiller(name, worst, best, read)


def _last(feedback: Sequence[Feedback], kind: FeedbackKind) -> Feedback | None:
    return next((each for each in reversed(feedback) if each.kind == kind), None)


# -- the signals


@distiller("vote", worst=-1.0, best=1.0)
def vote(episode: Episode, feedback: Sequence[Feedback]) -> Reading:
    """The last vote: people change their minds."""
    last = _last(feedback, "vote")
    return None if last is None else last.value


@distiller("keep_rate", worst=0.0, best=1.0)
def keep_rate(episode: Episode, feedback: Sequence[Feedback]) -> Reading:
    """The share of the answer that survives in what the last edit made of it: of its lines, or of its words where it has one
    line alone. Order does not count, and spaces around a line do not."""
    last = _last(feedback, "edit")
    if last is None:
        return None
    before, after = _items(last.original or episode.agent.answer, last.text)
    return (before & after).total() / before.total() if before else 0.0


def _items(before: str, after: str) -> tuple[Counter[str], Counter[str]]:
    lines = [[line.strip() for line in text.splitlines() if line.strip()] for text in (before, after)]
    if len(lines[0]) > 1:
        return Counter(lines[0]), Counter(lines[1])
    return Counter(before.split()), Counter(after.split())


@distiller("acceptance", worst=SHOWN_REJECTED, best=SHOWN_ACCEPTED)
def acceptance(episode: Episode, feedback: Sequence[Feedback]) -> Reading:
    """Whether the suggestion was accepted; one that was shown and passed over is as one that was turned down, and one that was
    held back is worth 0 (Cursor's Tab)."""
    if accepted := _last(feedback, "accept"):
        return SHOWN_ACCEPTED if accepted.value else SHOWN_REJECTED
    if shown := _last(feedback, "show"):
        return SHOWN_REJECTED if shown.value else NOT_SHOWN
    return None


def should_show(chance: float) -> bool:
    """Whether a suggestion that is accepted with this chance is worth more shown than held back: from a quarter on."""
    return chance * SHOWN_ACCEPTED + (1 - chance) * SHOWN_REJECTED >= NOT_SHOWN


_COMPLAINTS = re.compile(
    r"Traceback \(most recent call last\)|^[ \t]*\w*(?:Error|Exception)\b|\b(?:segmentation fault|stack trace)\b"
    r"|\b(?:that(?:'s| is)|this is|you(?:'re| are)) (?:not right|(?:all )?(?:wrong|incorrect|nonsense|useless))\b"
    r"|\b(?:not what i|does(?:n't| not) work|did(?:n't| not) work|still (?:not|wrong|fails?|failing|broken|missing))\b"
    r"|\b(?:try again|undo|revert|you (?:missed|forgot|ignored|broke))\b|^[ \t]*(?:no[,.!]|wrong\b)",
    re.IGNORECASE | re.MULTILINE,
)
_SAME = 0.8


@distiller("follow_up", worst=0.0, best=1.0)
def follow_up(episode: Episode, feedback: Sequence[Feedback]) -> Reading:
    """Whether the first message after the answer moves on (1), or complains, pastes an error, or asks the same again (0). A
    rule of English words, which costs nothing and errs; `judged_follow_up` asks a model."""
    text = _said_next(feedback)
    if text is None:
        return None
    return 0.0 if _COMPLAINTS.search(text) or _again(episode.task.prompt, text) else 1.0


def _said_next(feedback: Sequence[Feedback]) -> str | None:
    return next((each.text for each in feedback if each.kind == "follow_up"), None)


def _again(asked: str, text: str) -> bool:
    """Whether four of five words of both are the same."""
    one, other = (set(re.findall(r"\w+", each.lower())) for each in (asked, text))
    return bool(one) and len(one & other) >= _SAME * len(one | other)


MOVES_ON = Rubric(
    "moves_on",
    "The attempt is followed by what its user said next. Is the user content with the answer? Moving on to another thing is"
    " content; correcting it, asking the same again, or pasting an error is not.",
)


def judged_follow_up(judge: Judge) -> Distiller:
    """`follow_up` by a model: the judge's grade of how content the user's next message is. Raises TriviumError, which leaves
    the episode unscored, where no grade can be read."""

    async def read(episode: Episode, feedback: Sequence[Feedback]) -> Reading:
        text = _said_next(feedback)
        if text is None:
            return None
        with_next = replace(judge, read=lambda each: f"{judge.read(each)}\n\nThe user then said: {text}")
        value, malformed = await with_next.grade(episode, MOVES_ON)
        if value is None:
            raise TriviumError(f"{judge.policy.name} gave no grade that can be read of {episode.id} in {malformed} answers")
        return value

    return Distiller("follow_up", 0.0, 1.0, read)


def outcome(name: str, worst: float = 0.0, best: float = 1.0) -> Distiller:
    """What came of it, under this name; the last word counts, and what lies beyond `worst` and `best` counts as they do."""

    def read(episode: Episode, feedback: Sequence[Feedback]) -> Reading:
        said = _last([each for each in feedback if each.name == name], "outcome")
        return None if said is None else min(best, max(worst, said.value))

    return Distiller(name, worst, best, read)


# -- a reward of several


@dataclass(frozen=True, slots=True)
class Distilled:
    """A reward made of signals: the weighted sum of what each says, from -1 at its worst to 1 at its best. A signal that is not
    there counts as its worst, so for any signal `reward` is at least what it would be without it.

    Beside `reward` stand what each signal says, under its name, and `signals`, how many there were.
    """

    weights: Mapping[Distiller, float]

    def __post_init__(self) -> None:
        """Raises InputError for no signals, weights that are none, and two signals of one name."""
        if not self.weights or not all(0 < weight < math.inf for weight in self.weights.values()):
            raise InputError("a reward is distilled from signals with weights above 0: distilled({keep_rate: 1.0})")
        if len({each.name for each in self.weights}) < len(self.weights):
            raise InputError(f"two signals have one name: {', '.join(each.name for each in self.weights)}")

    @property
    def version(self) -> str:
        """Which reward it is, for a store."""
        return " ".join(f"{each.name}={weight:g}" for each, weight in self.weights.items())

    async def __call__(self, episode: Episode, feedback: Sequence[Feedback]) -> dict[str, float]:
        readings = {each: await each(episode, feedback) for each in self.weights}
        said = {each.name: reading for each, reading in readings.items() if reading is not None}
        parts = [weight * _scaled(each, readings[each]) for each, weight in self.weights.items()]
        return {"reward": sum(parts) / sum(self.weights.values()), **said, "signals": float(len(said))}


def _scaled(signal: Distiller, reading: Reading) -> float:
    return -1.0 if reading is None else 2 * (reading - signal.worst) / (signal.best - signal.worst) - 1


def distilled(weights: Mapping[Distiller, float]) -> Distilled:
    """One reward of several signals: distilled({keep_rate: 1.0, follow_up: 0.5}). Raises InputError as `Distilled`."""
    return Distilled(dict(weights))


@dataclass(frozen=True, slots=True)
class Heard:
    """A scorer of what people did, which `feedback` knows of an episode's id: Heard(store.feedback, distilled({...}))."""

    feedback: Callable[[str], Sequence[Feedback]]
    reward: Distilled

    @property
    def version(self) -> str:
        """That of the reward."""
        return self.reward.version

    async def __call__(self, episode: Episode) -> dict[str, float]:
        return await self.reward(episode, self.feedback(episode.id))
