"""The staleness budget: what is too old to be learned from is dropped and counted, never silently used."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trivium.trace import Episode
from trivium.train import Group


def oldest(episode: Episode, policies: Collection[str]) -> int | None:
    """The version of the oldest token that `policies` sampled in this episode; None where they sampled none.

    An episode's age is its oldest token's: an advantage belongs to a whole episode, so its tokens are learned together or
    not at all. Tokens carried over from another segment, or from the parent of a branch, are context and have no age.
    """
    segments = [segment for thread in episode.threads if thread.policy in policies for segment in thread.segments]
    versions = [run.version for segment in segments for run in segment.versions if run.stop > segment.carried]
    return min(versions, default=None)


def fresh(groups: Sequence[Group], version: int, max_lag: int, policies: Collection[str]) -> tuple[list[Group], int]:
    """The groups without the episodes that are more than `max_lag` versions older than `version`, and how many those are.

    Those that stay are each other's baseline; of a group that lost some, a single one that is left has none and goes too.
    """
    kept = [_fresh(group, version - max_lag, policies) for group in groups]
    dropped = sum(len(group.episodes) for group in groups) - sum(len(group.episodes) for group in kept)
    return [group for group in kept if group.episodes], dropped


def _fresh(group: Group, least: int, policies: Collection[str]) -> Group:
    ages = [oldest(episode, policies) for episode in group.episodes]
    stay = [place for place, age in enumerate(ages) if age is None or age >= least]
    if len(stay) == len(ages):
        return group
    stay = stay if len(stay) > 1 else []
    return Group(group.task_id, [group.episodes[place] for place in stay], [group.rewards[place] for place in stay])
