"""Episodes in which a policy could not speak: data on their threads (law 8), and where all fell silent the end of a run."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.errors import PolicyError
from trivium.trace import Episode, Thread


def silence(episode: Episode) -> str:
    """Why a policy of the episode, the agent's or a sub-agent's, could not speak to its end, which is the doing of a dead
    engine or server; "" where all could."""
    stops = [thread.stop for thread in episode.threads]
    return next((stop.detail or stop.reason for stop in stops if stop and stop.reason == "policy"), "")


def silent(episode: Episode) -> bool:
    """Whether a policy of the episode could not speak to its end."""
    return bool(silence(episode))


def refuse_silence(episodes: Sequence[Episode]) -> None:
    """Raises PolicyError when some policy, the agent's or a sub-agent's, spoke in none of its lives in `episodes`. One that
    could not speak is data on its thread (law 8); one that never could has a broken engine or a dead server, and nothing would
    be learned from going on."""
    lives: dict[str, list[Thread]] = {}
    for thread in (thread for episode in episodes for thread in episode.threads):
        lives.setdefault(thread.policy, []).append(thread)
    for threads in lives.values():
        stops = [thread.stop for thread in threads if thread.stop and thread.stop.reason == "policy"]
        if len(stops) == len(threads) and not any(thread.turns for thread in threads):
            raise PolicyError(stops[0].detail)


def refuse_gaps(episodes: Sequence[Episode]) -> None:
    """Raises PolicyError when a policy could not speak to the end in some of `episodes`: where it is an engine of one's own,
    it broke, and to count those as worth nothing would be no measurement."""
    if broken := [reason for reason in map(silence, episodes) if reason]:
        raise PolicyError(f"the policy could not speak to the end in {len(broken)} of {len(episodes)} attempts: {broken[0]}")
