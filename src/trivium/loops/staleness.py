"""The staleness budget: what is too old to be learned from is dropped and counted, never silently used."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trivium.trace import Episode
from trivium.train import Group


def versions(episode: Episode, policies: Collection[str]) -> list[int]:
    """The versions under which `policies` sampled tokens of this episode; tokens carried over from another segment, or from
    the parent of a branch, are context and have none."""
    segments = [segment for thread in episode.threads if thread.policy in policies for segment in thread.segments]
    return [run.version for segment in segments for run in segment.versions if run.stop > segment.carried]


def fresh(groups: Sequence[Group], version: int, max_lag: int, policies: Collection[str]) -> tuple[list[Group], int]:
    """The groups without the episodes that are more than `max_lag` versions older than `version`, and how many those are,
    branches not counted.

    An episode's age is its oldest token's: an advantage belongs to a whole episode, so its tokens are learned together or not
    at all. A token of a version above `version` is none of this learner's (a server that outlived a killed run speaks such),
    and its episode goes too. Those that stay are each other's baseline; of a group that lost some, a single one that is left
    has none and goes as well, unless one is stated.
    """
    young = [_fresh(group, range(version - max_lag, version + 1), policies) for group in groups]
    return [group for group in young if group.episodes], attempts_in(groups) - attempts_in(young)


def attempts_in(groups: Sequence[Group]) -> int:
    """How many attempts stand in these groups, branches not counted."""
    return sum(not episode.parent for group in groups for episode in group.episodes)


def _fresh(group: Group, allowed: range, policies: Collection[str]) -> Group:
    places = [n for n, episode in enumerate(group.episodes) if all(v in allowed for v in versions(episode, policies))]
    if len(places) == len(group.episodes):
        return group
    places = places if len(places) > 1 or group.baseline is not None else []
    episodes, rewards = [group.episodes[number] for number in places], [group.rewards[number] for number in places]
    return Group(group.task_id, episodes, rewards, group.baseline)
