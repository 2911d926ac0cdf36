"""The seams: a scorer is any async function of an episode, a group scorer compares the episodes of one task.

A scorer that fails leaves an episode *unscored*: it is counted, stands in no group and in no mean, and ends nothing. No
signal is never a bad score, and a bad judge loses no episode.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, SupportsFloat, TypeVar, runtime_checkable

from trivium.errors import InputError, TriviumError
from trivium.trace import Episode, Score

SECONDS = 600.0
"""How long a scorer may take that says nothing else of itself."""

PAUSES = (1.0, 10.0, 60.0)
"""Seconds before a scorer that failed is called again; a longer row of retries goes on with the last."""


class Scorer(Protocol):
    """Says what one episode was worth: any async function of an episode."""

    def __call__(self, episode: Episode, /) -> Awaitable[Mapping[str, float]]:
        """Named scores. The one called `reward` is what training maximises; the others are its visible parts."""
        ...


@runtime_checkable
class GroupScorer(Protocol):
    """Compares the episodes of one task: a judge that ranks attempts, a price on what others found cheaper."""

    async def compare(self, episodes: Sequence[Episode]) -> Sequence[Mapping[str, float] | Exception]:
        """Named scores of each episode, in their order; an error in their place leaves that episode unscored. Called once all
        attempts at a task have ended, and once more for the branches of each."""
        ...


AnyScorer = Scorer | GroupScorer
Verdict = dict[str, float] | Exception
"""The scores of an episode, or the error that left it unscored."""

T = TypeVar("T", bound=AnyScorer)


class ScorerError(TriviumError):
    """No episode could be scored. The message says what was wrong with the first; `episodes` are all of them, unscored."""

    def __init__(self, message: str, episodes: Sequence[Episode]) -> None:
        super().__init__(message)
        self.episodes = list(episodes)


def patience(seconds: float = SECONDS, retries: int = 0) -> Callable[[T], T]:
    """How long a scorer may take and how often it is called again when it failed: `@patience(seconds=30, retries=2)`.

    A class of scorers may as well have `seconds` and `retries` of its own. Only one that awaits can be stopped. Raises
    InputError for no time, or fewer than 0 retries.
    """
    if not seconds > 0 or retries < 0:
        raise InputError(f"a scorer has more than 0 seconds and at least 0 retries, not {seconds:g} and {retries}")

    def limit(scorer: T) -> T:
        for name, value in (("seconds", seconds), ("retries", retries)):
            setattr(scorer, name, value)
        return scorer

    return limit


async def score(episodes: Sequence[Episode], scorer: AnyScorer) -> list[dict[str, float]]:
    """The scores of each episode, all asked for at once; a group scorer compares those of one task. Raises what the scorer
    raised first, and InputError for what is no mapping of names to numbers."""
    results = []
    for verdict in await verdicts(episodes, scorer):
        if isinstance(verdict, Exception):
            raise verdict
        results.append(verdict)
    return results


async def verdicts(episodes: Sequence[Episode], scorer: AnyScorer, need: str = "") -> list[Verdict]:
    """The scores of each episode, or the error that left it unscored: what the scorer raised, a deadline that passed, what is
    no mapping of names to numbers, no finite number called `need`. A failure is retried as often as the scorer says. A group
    scorer compares the attempts at one task, and the branches of one attempt.
    """
    if isinstance(scorer, GroupScorer):
        return await _compared(episodes, scorer, need)
    calls = [_patiently(lambda e=e: scorer(e), lambda result: _numbers(result, scorer, need), scorer) for e in episodes]
    return list(await asyncio.gather(*calls))


async def _compared(episodes: Sequence[Episode], scorer: GroupScorer, need: str) -> list[Verdict]:
    """The verdicts of a comparison of each task's attempts; where one failed, none of its episodes is scored."""
    rows: dict[tuple[str, str], list[Episode]] = {}
    for episode in episodes:
        rows.setdefault((episode.task.id, episode.parent), []).append(episode)

    async def compare(row: list[Episode]) -> list[Verdict]:
        result = await _patiently(lambda: scorer.compare(row), lambda result: _rows(result, row, scorer, need), scorer)
        return [result] * len(row) if isinstance(result, Exception) else result

    parts = await asyncio.gather(*map(compare, rows.values()))
    verdict = {key: iter(part) for key, part in zip(rows, parts, strict=True)}
    return [next(verdict[episode.task.id, episode.parent]) for episode in episodes]


async def _patiently(call: Callable[[], Any], check: Callable[[Any], Any], scorer: AnyScorer) -> Any:
    """What `check` makes of the awaited `call`, or the error of its last try."""
    seconds, retries = float(getattr(scorer, "seconds", SECONDS)), int(getattr(scorer, "retries", 0))
    for number in range(retries + 1):
        if number:
            await asyncio.sleep(PAUSES[min(number, len(PAUSES)) - 1])
        result = await _once(call, check, seconds, scorer)
        if not isinstance(result, Exception):
            break
    return result


async def _once(call: Callable[[], Any], check: Callable[[Any], Any], seconds: float, scorer: AnyScorer) -> Any:
    deadline = asyncio.timeout(seconds if math.isfinite(seconds) else None)
    try:
        async with deadline:
            awaited = call()
            if not inspect.isawaitable(awaited):
                return InputError(f"the scorer {scorer_name(scorer)} is no async function: write `async def`")
            return check(await awaited)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return TriviumError(f"what the scorer {scorer_name(scorer)} waited for was cancelled")
    except Exception as error:
        late = isinstance(error, TimeoutError) and deadline.expired()
        return TriviumError(f"the scorer {scorer_name(scorer)} took longer than {seconds:g} s") if late else error


def _rows(result: Any, episodes: Sequence[Episode], scorer: AnyScorer, need: str) -> list[Verdict]:
    """The verdicts of a comparison; one of its parts may have left an episode unscored."""
    if isinstance(result, str | Mapping) or not isinstance(result, Sequence) or len(result) != len(episodes):
        name, count = scorer_name(scorer), len(episodes)
        raise InputError(f"the scorer {name} compares {count} episodes and gives {result!r}; it is to give scores of each")
    return [_row(each, scorer, need) for each in result]


def _row(result: Any, scorer: AnyScorer, need: str) -> Verdict:
    """What a comparison says of one episode; what is wrong with it leaves the others scored."""
    try:
        return result if isinstance(result, Exception) else _numbers(result, scorer, need)
    except InputError as error:
        return error


def _numbers(result: Any, scorer: AnyScorer, need: str) -> dict[str, float]:
    gives = f"the scorer {scorer_name(scorer)} gives"
    items = result.items() if isinstance(result, Mapping) else [(None, None)]
    if not all(isinstance(name, str) and isinstance(value, SupportsFloat) for name, value in items):
        raise InputError(f"{gives} {result!r}; it is to give numbers by name, as {{'reward': 1.0}}")
    scores = {name: float(value) for name, value in result.items()}
    if need and need not in scores:
        raise InputError(f"{gives} no {need}, only {', '.join(sorted(scores)) or 'nothing'}")
    if need and not math.isfinite(scores[need]):
        raise InputError(f"{gives} the {need} {scores[need]}, which is no finite number")
    return scores


def refuse_unscored(episodes: Sequence[Episode], result: Sequence[Verdict], what: str) -> None:
    """ScorerError where there are episodes and none of them was scored, with the first one's cause: a bug, or a judge that
    is gone, and nothing would be learned from going on. `what` names the episodes."""
    errors = [verdict for verdict in result if isinstance(verdict, Exception)]
    if errors and len(errors) == len(episodes):
        message = f"no episode of {what} could be scored; the first, {episodes[0].id}: {_in_words(errors[0])}"
        raise ScorerError(message, episodes) from errors[0]


def _in_words(error: Exception) -> str:
    """An error in words; somebody's own with its type, and where it was raised."""
    if isinstance(error, TriviumError):
        return str(error)
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})" if trace else ""
    return f"{type(error).__name__}: {error}{where}"


def scorer_name(scorer: AnyScorer) -> str:
    """What a scorer is called: a function by its name, an object by its class."""
    return getattr(scorer, "__name__", type(scorer).__name__)


def version(scorer: AnyScorer) -> str:
    """Which version of a scorer speaks: what its attribute `version` says, "1" where it has none. So a store tells apart the
    scores of a reward that changes over a run, or was mended."""
    return str(getattr(scorer, "version", "1"))


def opinions(episodes: Sequence[Episode], scores: Sequence[Mapping[str, float]], scorer: AnyScorer) -> list[Score]:
    """The scores that `scorer` gave each episode as the store keeps them, with its name and version; none of an unscored
    episode."""
    pairs, by = zip(episodes, scores, strict=True), (scorer_name(scorer), version(scorer))
    return [Score(episode.id, name, float(value), *by) for episode, numbers in pairs for name, value in numbers.items()]
