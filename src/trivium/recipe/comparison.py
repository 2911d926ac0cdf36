"""What `eval --compare` may say of one agent beside what it says of all: subclass Comparison, and name it in the recipe."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.eval import Result
from trivium.harness import Harness
from trivium.policy import Policy
from trivium.trace import Episode

if TYPE_CHECKING:
    from trivium.recipe.base import Bench, Recipe, Suite
    from trivium.recipe.compare import Side
    from trivium.recipe.evaluate import Attempts
    from trivium.recipe.measured import Measured, Outcomes
    from trivium.recipe.report import Table

Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Speaker:
    """A policy of a run and how it speaks. `stage` is base, sft, rl or expert; `variant` names a changed harness."""

    name: str
    stage: str
    greedy: bool = False
    variant: str = ""
    attempts: int = 1


STAGES = [
    Speaker(f"{stage}_greedy" if greedy else stage, stage, greedy)
    for stage in ("base", "sft", "rl")
    for greedy in (False, True)
]
"""Every policy that training made, sampled and greedy."""
EXPERT = Speaker("expert", "expert")
"""The ceiling, where an agent knows of one."""

LEARNED = (("rl", "sft"), ("rl_greedy", "sft_greedy"), ("rl", "base"), ("rl_greedy", "base_greedy"))
"""What RL is measured against: the warm-up, and the model before any training."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of an agent of which nothing is known but its scores."""

    recipe: Recipe

    pairs: tuple[tuple[str, str], ...] = LEARNED
    """Which policies are paired, task by task: the first less the second."""

    def metrics(self) -> tuple[str, ...]:
        """The scores that its tables have a row for; none: all that there are."""
        return self.recipe.panels.table

    def training(self) -> tuple[str, ...]:
        """The numbers of steps of RL that tell how training went; none: reward and what every step counts."""
        return ()

    def speakers(self, suite: Suite) -> list[Speaker]:
        """All that may be measured on `suite`, the ceiling last."""
        return [*STAGES, EXPERT]

    def source(self, suite: Suite) -> str:
        """Where the tasks of `suite` come from: runs with different sources have none in common."""
        return type(self.recipe).__name__

    def check(self, suite: Suite, recipes: Sequence[Recipe], greedy: bool = False) -> None:
        """InputError for a suite on which runs of these recipes cannot be measured, or not greedily."""

    def expert(self, bench: Bench) -> Policy | None:
        """The ceiling on a bench; nobody where the agent knows of none."""
        return self.recipe.ceiling(bench.tasks)

    def expert_source(self) -> str:
        """A digest of the file that decides what the ceiling says; default: the recipe's own."""
        return hashlib.blake2b(Path(inspect.getfile(type(self.recipe))).read_bytes(), digest_size=16).hexdigest()

    def variant(self, name: str, harness: Harness) -> Harness:
        """The harness that a speaker's `variant` names."""
        raise NotImplementedError(name)

    def beside(self, episode: Episode) -> dict[str, float]:
        """Scores of an episode beside those of the judge."""
        return {}

    def outcome(self, episode: Episode) -> Any:
        """What `further` needs of an episode; default: nothing."""
        return None

    def further(
        self, run: Measured, speakers: Sequence[Speaker], outcomes: dict[str, Outcomes], progress: Callable[[int], None]
    ) -> dict[str, Result]:
        """Results beside those of the speakers, by name: of what needs no training, or of several attempts as one."""
        return {}

    def sections(self, side: Side) -> Numbers:
        """Numbers of a recipe's runs beside those of all agents, as JSON."""
        return {}

    def tables(self, numbers: Numbers) -> Iterator[Table]:
        """Tables of a recipe's numbers, behind those of all agents."""
        return iter(())

    # --- `trivium eval`

    def attempts(self, suite: Suite) -> int:
        """How often each task is attempted."""
        return 1

    def further_lines(
        self, suite: Suite, bench: Bench, result: Result, episodes: Sequence[Episode], attempt: Attempts
    ) -> Iterator[str]:
        """Blocks of lines behind the scores."""
        return iter(())
