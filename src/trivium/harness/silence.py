"""Episodes that infrastructure ended: a policy that could not speak, a place that broke. That is data on their threads (law 8),
which a run begins anew; where it happened to all of them, it ends the run."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.errors import PlaceError, PolicyError
from trivium.trace import Episode, Stop, Thread

_ERRORS = {"policy": PolicyError, "place": PlaceError}
_WORDS = {"policy": "the policy could not speak to the end", "place": "the place broke"}


def silence(episode: Episode) -> str:
    """Why a policy of the episode, the agent's or a sub-agent's, could not speak to its end, or its place broke, which is the
    doing of a dead engine, server or sandbox; "" where all went on to an end of their own. An agent that used up its time
    without a word hung with its engine; one that spoke used up its own."""
    stop = _broken(episode)
    return stop.detail or stop.reason if stop else ""


def silence_error(episode: Episode) -> PolicyError | PlaceError:
    """What to raise where nothing but silence is left: PlaceError where it was a place that broke."""
    stop = _broken(episode) or Stop("policy", "it is not known why")
    return _ERRORS[stop.reason](stop.detail or stop.reason)


def silent(episode: Episode) -> bool:
    """Whether a policy of the episode could not speak to its end, or its place broke."""
    return _broken(episode) is not None


def refuse_silence(episodes: Sequence[Episode]) -> None:
    """Raises PolicyError when some policy, the agent's or a sub-agent's, spoke in none of its lives in `episodes`, PlaceError
    where that was because of their place. One that could not speak is data on its thread (law 8); one that never could has a
    broken engine or a dead server, and nothing would be learned from going on."""
    lives: dict[str, list[Thread]] = {}
    for thread in (thread for episode in episodes for thread in episode.threads):
        lives.setdefault(thread.policy, []).append(thread)
    for threads in lives.values():
        stops = [thread.stop for thread in threads if _is_broken(thread)]
        if len(stops) == len(threads) and not any(thread.turns for thread in threads) and stops[0]:
            raise _ERRORS[stops[0].reason](stops[0].detail)


def refuse_gaps(episodes: Sequence[Episode]) -> None:
    """Raises PolicyError when a policy could not speak to the end in some of `episodes`, PlaceError where a place broke: where
    it is an engine of one's own, it broke, and to count those as worth nothing would be no measurement."""
    if stops := [stop for stop in map(_broken, episodes) if stop]:
        first = stops[0]
        raise _ERRORS[first.reason](f"{_WORDS[first.reason]} in {len(stops)} of {len(episodes)} attempts: {first.detail}")


def _broken(episode: Episode) -> Stop | None:
    agent = episode.agent
    if agent.stop and agent.stop.reason == "timeout" and not agent.turns:
        return Stop("policy", f"{agent.policy} said nothing before {agent.stop.detail}")
    return next((thread.stop for thread in episode.threads if _is_broken(thread)), None)


def _is_broken(thread: Thread) -> bool:
    return thread.stop is not None and thread.stop.reason in _ERRORS
