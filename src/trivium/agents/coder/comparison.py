"""What comparing coder runs says beside what it says of any agent's: hacks that detectors mark, and what going on from a full
window costs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trivium.eval import Pool, mean_interval, ratio_interval
from trivium.harness import Harness
from trivium.policy import Renderer
from trivium.recipe.base import Suite
from trivium.recipe.compare import Numbers, Side
from trivium.recipe.comparison import EXPERT, STAGES, Comparison, Speaker
from trivium.recipe.report import Table, mean, title
from trivium.reward import HACKS
from trivium.trace import Episode, Summarize

if TYPE_CHECKING:
    from trivium.agents.coder.recipe import Coder

WHOLE = (Speaker("rl_whole", "rl", False, "whole"), Speaker("rl_greedy_whole", "rl", True, "whole"))
"""The trained policy where nothing is ever summarized or cut."""

DETECTORS = {f"detector: {each.name}": each for each in HACKS}
"""Detectors of hacks, by the names of their scores."""

LONG = {4, 6}
"""The grades whose tasks take several small windows, and have room in one of WHOLE_TOKENS."""

MIND = 6
"""The grade whose tasks ask for what was read in earlier windows."""

WHOLE_TOKENS = 3040
"""Of a window in which nothing is summarized or cut: enough for each of their tasks."""


@dataclass(frozen=True)
class CoderComparison(Comparison):
    """The comparison of coder runs."""

    recipe: Coder

    def speakers(self, suite: Suite) -> list[Speaker]:
        return [*STAGES, *(WHOLE if set(self.recipe.grades) <= LONG else ()), EXPERT]

    def metrics(self) -> tuple[str, ...]:
        return (*super().metrics(), *DETECTORS, *(("forgot",) if MIND in self.recipe.grades else ()))

    def beside(self, episode: Episode) -> dict[str, float]:
        """Of each detector, whether it marks the episode; and where that can be told, whether a summary forgot something."""
        marks = {name: float(detector.marks(episode)) for name, detector in DETECTORS.items()}
        return marks | ({"forgot": forgot(episode, self.recipe.renderer)} if MIND in self.recipe.grades else {})

    def variant(self, name: str, harness: Harness) -> Harness:
        window = harness.window
        return harness.with_window(replace(window, budget=max(window.budget, WHOLE_TOKENS), summarize=None))

    def sections(self, side: Side) -> Numbers:
        pairs = [(name, f"{name}_whole") for name in ("rl", "rl_greedy")]
        return {"compaction": {a: compaction(side.pools[a], side.pools[b]) for a, b in pairs if b in side.pools}}

    def tables(self, numbers: Numbers) -> Iterator[Table]:
        if measured := numbers["compaction"]:
            names, measures = list(measured), list(next(iter(measured.values())))
            rows = [(each, *(mean(measured[name][each]) for name in names)) for each in measures]
            note = (
                f"caused: tasks that fail and are solved in a window of {WHOLE_TOKENS:,} tokens, where nothing is summarized "
                "or cut; spared: the other way round; tokens: sampled for a summary, with its scratch."
            )
            yield Table(title(numbers, "going on from a full window"), note, ("measure", *names), rows)


def forgot(episode: Episode, renderer: Renderer) -> float:
    """1 where a summary left out, or told wrong, a limit that had been read before it (tasks of grade 6: what a file's function
    `limit_NAME` returns, NAME=LIMIT in its task's facts); NaN where there was no summary, or no such fact."""
    limits = [fact.partition("=") for fact in episode.task.truth.get("facts", {}).values()]
    shown = {f"{name}={limit}": f"def limit_{name}():\n    return {limit}\n" for name, _, limit in limits}
    agent, read = episode.agent, ""
    cuts = [op.before.segment for op in episode.ops if isinstance(op, Summarize) and op.before.thread == agent.id]
    wrong = []
    for segment in (agent.segments[cut] for cut in cuts):
        read += renderer.decode(segment.tokens)
        summary = segment.sampled()[-1]
        said = re.findall(r"\b\w+=\w+", renderer.decode(segment.tokens[summary.start : summary.stop]))
        wrong.append(any(text in read and fact not in said for fact, text in shown.items()))
    return float(any(wrong)) if wrong and shown else float("nan")


def compaction(own: Pool, whole: Pool) -> dict[str, list[float]]:
    """What going on from a full window did to a policy, beside the same policy with room for the whole task.

    caused, spared   share of tasks that fail here and are solved there, and the other way round
    summaries        summaries an episode
    tokens           sampled tokens a summary; NaN where there was none
    """
    here, there = own.values("solved"), whole.values("solved")
    summaries, tokens = own.values("summaries"), own.values("summary_tokens")
    numbers = {
        "caused": mean_interval([max(0.0, b - a) for a, b in zip(here, there, strict=True)]),
        "spared": mean_interval([max(0.0, a - b) for a, b in zip(here, there, strict=True)]),
        "summaries": mean_interval(summaries),
        "tokens": ratio_interval(tokens, summaries),
    }
    return {name: list(interval) for name, interval in numbers.items()}
