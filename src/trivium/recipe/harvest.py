"""Rejection-sampling fine-tuning (Kimi K2.5's report, section 2.3): what a run did well is the warm-up of the next stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from blake3 import blake3

from trivium.errors import InputError
from trivium.loops.run import Run
from trivium.policy.render import load_tokenizer
from trivium.recipe.base import Recipe
from trivium.trace import Episode, Store


@dataclass(frozen=True)
class Harvest:
    """The successful episodes of the run that `recipe.warmup_from` names, as lessons for `recipe`: of its RL, finished, with a
    reward of at least `recipe.warmup_above`, each way to do a task once, the newest first, at most `recipe.warmup` (0: all).

    Left out are those of tasks that `recipe` is measured on. Raises InputError for a run that has not ended, one that spoke
    with another tokenizer or lived in another harness, and where no episode is fit.
    """

    recipe: Recipe

    @cached_property
    def run(self) -> Run:
        return Run.open(self.recipe.warmup_from)

    @cached_property
    def lessons(self) -> list[Episode]:
        self._check_tokenizer()
        if not self._chosen:
            above, counts = self.recipe.warmup_above, ", ".join(f"{count} {why}" for why, count in self._left.items())
            raise InputError(f"{self.run.folder} has no episode with a reward of {above:g} to learn from ({counts or 'none'})")
        most = self.recipe.warmup or len(self._chosen)
        return [episode for episode, _ in self._chosen[:most]]

    def _check_tokenizer(self) -> None:
        theirs = load_tokenizer(self.run.model()).get_vocab()
        if theirs != self.recipe.renderer.tokenizer.get_vocab():
            raise InputError(f"{self.run.folder} speaks with another tokenizer than {self.recipe.base()}: begin from its base")

    @cached_property
    def _chosen(self) -> list[tuple[Episode, float]]:
        """The fit ones with their rewards; `_left` says how many were left out, and why."""
        heldout = {task.prompt for task in self.recipe.tasks("heldout")}
        harness, seen, chosen = self.recipe.harness().digest, set(), []
        for episode, reward in self._attempts():
            if why := self._unfit(episode, reward, heldout):
                self._left[why] += 1
            elif (way := _way(episode)) in seen:
                self._left["repeated"] += 1
            elif episode.deployment not in ("", harness):
                raise InputError(
                    f"{self.run.folder} lived in another harness: its tools, prompt or window are not this agent's"
                )
            else:
                seen.add(way)
                chosen.append((episode, reward))
        return chosen

    def _attempts(self) -> Iterator[tuple[Episode, float]]:
        with closing(self.store()) as store:
            for episode in reversed(list(store.select(prefix="rl/"))):
                yield episode, store.own_scores(episode.id).get("reward", float("nan"))

    def store(self) -> Store:
        """The other run's, opened anew, to be read and closed."""
        return Store(self.run.folder / "episodes.db", readonly=True)

    def _unfit(self, episode: Episode, reward: float, heldout: set[str]) -> str:
        """Why it is no lesson; "" for one that is."""
        if not reward >= self.recipe.warmup_above:
            return "below the threshold"
        if episode.parent or not episode.agent.stop or episode.agent.stop.reason != "finished":
            return "unfinished, or branches"
        return "held out" if episode.task.prompt in heldout else ""

    @cached_property
    def _left(self) -> Counter[str]:
        return Counter()

    def digest(self) -> str:
        """Of the lessons, so that a run goes on with the same ones alone."""
        return blake3("\n".join(episode.id + _way(episode) for episode in self.lessons).encode()).hexdigest()

    def provenance(self) -> dict[str, Any]:
        """Where the lessons are from, as JSON: the run and its recipe, the threshold, what was left out, ids with rewards."""
        lessons = self.lessons
        return {
            "run": str(Path(self.run.folder).resolve()),
            "recipe": self.run.recipe(),
            "above": self.recipe.warmup_above,
            "left_out": {**self._left, "more than --warmup": len(self._chosen) - len(lessons)},
            "episodes": {episode.id: reward for episode, reward in self._chosen[: len(lessons)]},
        }


def _way(episode: Episode) -> str:
    """A digest of a task and of what the agent said at it: equal ones teach the same twice."""
    spoken = [segment.tokens[span.start : span.stop] for segment in episode.agent.segments for span in segment.sampled()]
    return blake3(repr((episode.task.id, spoken)).encode()).hexdigest()
