"""`trivium rollback RUN`: back to what served people well, now."""

from __future__ import annotations

from trivium.loops.deploy import Deployment, Deployments
from trivium.recipe.show import RunFolder


def rollback(run: RunFolder, reason: str = "a person asked for it") -> None:
    """Take back the candidate that some people try out, or where there is none the version that all are served by. What was
    taken back is never served again. Said once more, it goes back one more version.

    Args:
        run: the run's folder
        reason: why; it is kept in the deployment record
    """
    print(told(Deployments(run).rollback(reason)))


def told(now: Deployment) -> str:
    """A deployment in words, its last change first."""
    last = now.changes[-1]
    return f"version {last.version}: {last.verb} ({last.reason}); version {now.incumbent.version} is served to all"
