"""A run's deployment record, as a server follows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trivium.errors import InputError
from trivium.loops.deploy import Deployments
from trivium.policy import Policy
from trivium.serve.routing import Wanted

UNNAMED = ""
"""Who serves a run that has no record yet: the run's own model."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record in a run's folder. `speak` gives whoever speaks with the weights in a folder, which are of a version; `model`
    is the run's own."""

    deployments: Deployments
    model: Path
    speak: Callable[[Path, int], Policy]

    def wanted(self) -> Wanted:
        """Versions by their numbers. Raises as `Deployments.read`."""
        if not self.deployments.path.exists():
            return Wanted(UNNAMED)
        now = self.deployments.read()
        return Wanted(str(now.incumbent.version), str(now.candidate.version) if now.candidate else "", now.share)

    def load(self, deployment: str) -> Policy:
        """Raises as `Deployments.check`, and InputError for a version that the record names no more."""
        if deployment == UNNAMED:
            return self.speak(self.model, 0)
        now = self.deployments.read()
        for release in (now.incumbent, now.candidate):
            if release and str(release.version) == deployment:
                self.deployments.check(release)
                return self.speak(self.deployments.model(release), release.version)
        raise InputError(f"version {deployment} of {self.deployments.folder} is not deployed any more")
