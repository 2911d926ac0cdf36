"""The cycles of a live loop: one JSON record each, whose last one is also where the loop goes on.

live/
  cycles/00000003.json   what cycle 3 learned from, what it changed, what the gate said, what became of it
  versions/3/            the candidate that it made, a Hugging Face folder;  version 0 is the run's own model
  learner/3/             the learner as it was then, its optimizer's state too
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from trivium import files
from trivium.errors import CorruptError

Stage = Literal["taken", "learned", "judged", "canary", "done"]
Outcome = Literal["", "promoted", "held", "rejected", "rolled_back", "nothing"]


@dataclass(slots=True)
class Cycle:
    """One turn of the loop. Everything that a killed one needs to go on stands in it, so there is no second file that could
    disagree with it.

    after, until   numbers of episodes in the store: those behind `after` up to `until` were this cycle's to judge
    base           the version that the learner went on from;  version: the one that it made
    incumbent      the version that the candidate was compared with
    learned        episode id -> reward, of those learned from: used here, and never again
    fates          how many episodes were learned from, held out, too old, quarantined, ... (loops/traffic.py names each)
    served         version -> what people who were served by it made of it
    baseline       kind of task -> (episodes, sum of rewards), as it stands after this window
    origin         where a candidate that was made elsewhere came from
    decision       what the gate said, with its evidence;  canary: what the canary's users said
    seconds        what each part took
    """

    number: int
    after: int
    until: int
    base: int = 0
    version: int = 0
    incumbent: int = 0
    stage: Stage = "taken"
    outcome: Outcome = ""
    reason: str = ""
    origin: str = ""
    began: float = field(default_factory=time.time)
    ended: float = 0.0
    learned: dict[str, float] = field(default_factory=dict)
    fates: dict[str, int] = field(default_factory=dict)
    served: dict[str, dict[str, float]] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    baseline: dict[str, tuple[float, float]] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    decision: dict[str, Any] = field(default_factory=dict)
    canary: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Cycles:
    """The records in a run's folder. Each is swapped in whole (law 9)."""

    def __init__(self, run: str | Path) -> None:
        self.folder = Path(run) / "live"
        self.run = Path(run)

    def all(self) -> Iterator[Cycle]:
        """Every record, oldest first. CorruptError for one that is none."""
        for path in sorted((self.folder / "cycles").glob("*.json")):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=Cycle)
            except files.TORN as error:
                raise CorruptError(f"{path} is no record of a cycle: {error}") from error

    def last(self) -> Cycle | None:
        """The newest record: one that is not done is to be gone on with."""
        return next(iter(reversed(list(self.all()))), None)

    def keep(self, cycle: Cycle) -> None:
        """Write a record, in place of what it was before."""
        (self.folder / "cycles").mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(asdict(cycle)), indent=1)
        files.swap(self.folder / "cycles" / f"{cycle.number:08d}.json", text + b"\n")

    def model(self, version: int) -> Path:
        """The folder of a version's weights."""
        return self.folder / "versions" / str(version) if version else self.run / "model"

    def learner(self, version: int) -> Path:
        """The folder of the learner that made a version."""
        return self.folder / "learner" / str(version)

    def lineage(self, version: int) -> list[int]:
        """A version and those that it came from, newest first. What a version of another line said (one that was rejected) is
        not this learner's."""
        base = {cycle.version: cycle.base for cycle in self.all()}
        line = [version]
        while line[-1]:
            line.append(base.get(line[-1], 0))
        return line
