"""`trivium live RUN`: what people do with the served agent makes it better, or it stays what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from trivium.errors import InputError
from trivium.eval.canary import Canary
from trivium.eval.gate import Decision, Gate
from trivium.eval.pinned import PinnedSuite
from trivium.eval.trial import trial
from trivium.loops.cycles import Cycle
from trivium.loops.live import Listening, Live, Trying
from trivium.loops.run import Run
from trivium.loops.traffic import Rules
from trivium.nn import Network
from trivium.recipe.base import Recipe
from trivium.recipe.find import opened
from trivium.recipe.memory import fitting_engine
from trivium.recipe.parts import Parts
from trivium.recipe.show import RunFolder
from trivium.recipe.watcher import embedding
from trivium.reward.detectors import HACKS
from trivium.trace import Store
from trivium.train import AdamW, Compute, Learner
from trivium.viewer import Live as Display

SUITE = "heldout"
"""The suite that has to become better, or that is guarded: the agent's own held-out tasks, pinned."""

FIRST = 8
"""Held-out tasks that the run's model attempts before a turn waits, so that a score which no gate compares is told at once."""


LEARNING = ("cycles", "least", "most", "hours", "versions", "holdout", "lr", "substeps")
"""The options that are about learning."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a person decides about a live loop."""

    cycles: int = 1
    """how many turns"""
    store: str = ""
    """where the server keeps episodes; default: served.db in the run's folder"""
    least: int = 256
    """episodes to learn from that a turn waits for"""
    most: int = 4096
    """episodes that a turn learns from, at most"""
    patience: float = 3600.0
    """seconds that a turn waits for episodes, and a canary for a verdict"""
    hours: float = 24.0
    """the oldest episode that is learned from"""
    versions: int = 2
    """how many versions back an episode may have been spoken"""
    holdout: float = 0.1
    """the share of users who are never learned from"""
    settle: float = 0.0
    """seconds that people get to say what they think before an episode is used"""
    lr: float = 0.0
    """learning rate; 0: that of the run's RL"""
    substeps: int = 4
    """updates of the weights in a turn"""
    score: str = ""
    """the score from 0 to 1 that the candidate has to be better at on held-out tasks; default: the one that the
    agent names, such as the share of tasks that it solves"""
    guard: float = 0.0
    """0: better is asked for; above: only to be less than so much worse, for what people want and no held-out task measures"""
    tasks: int = 256
    """held-out tasks that it is measured on, at most: the test stops when it is decided"""
    share: float = 0.5
    """the share of the users who try a candidate that passed; 0: it is deployed at once"""
    margin: float = 0.1
    """how much less content, from 0 to 1, the users of a canary must be shown not to be"""
    error: float = 0.05
    """the chance of a wrong verdict, of the gate and of the canary each"""

    def __post_init__(self) -> None:
        """Raises InputError for numbers that cannot be meant; window, gate and canary look at theirs."""
        least = {"cycles": 1, "least": 1, "substeps": 1, "tasks": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise InputError(f"--{name} must be at least {number}, not {getattr(self, name)}")
        if self.most < self.least:
            raise InputError(f"--most {self.most} is less than --least {self.least}: a turn would wait for ever")
        if not self.patience > 0 or not 0 <= self.lr < 1 or not 0 <= self.share < 1:
            numbers = f"{self.patience:g}, {self.lr:g} and {self.share:g}"
            raise InputError(f"--patience is above 0, --lr and --share are from 0 and below 1, not {numbers}")


def live(run: RunFolder, options: Annotated[Options, tyro.conf.arg(name="")], candidate: str = "") -> None:
    """Learn from what people do with a served run, and deploy what is better. Run it beside `trivium serve RUN`; stopped or
    killed, the same command goes on. docs/live.md says more.

    Args:
        run: the run's folder
        options: how it listens, learns and dares
        candidate: a model folder that was made elsewhere: it meets the same gate and canary, and nothing is learned
    """
    if candidate:
        _refuse_learning(options)
        if not Path(candidate).is_dir():
            raise InputError(f"there is no folder {candidate}")
    with Display() as watch, alone(run):
        loop = loop_of(run, options, embedding(watch))
        turns = [partial(loop.try_out, Path(candidate), candidate)] if candidate else [loop.cycle] * options.cycles
        if not candidate:
            watch.note(f"a turn begins with {options.least} episodes to learn from, and waits {options.patience:g} s for them")
        for turn in turns:
            watch.note(told(asyncio.run(turn())))


def _refuse_learning(options: Options) -> None:
    """InputError for an option about learning, which a candidate that was made elsewhere makes vain."""
    for name in LEARNING:
        if getattr(options, name) != getattr(Options(), name):
            raise InputError(f"--{name} would change nothing: a --candidate was made elsewhere, and nothing is learned")


@contextmanager
def alone(run: str) -> Generator[None]:
    """A run that no other process learns on meanwhile. InputError where one does."""
    folder = Run.open(run)
    folder.acquire()
    try:
        yield
    finally:
        folder.close()


def loop_of(run: str, options: Options, progress: Callable[[int, int], None] = lambda done, of: None) -> Live:
    """The loop of a run. InputError for one without weights, and for a suite that is another than when it was pinned."""
    targets, guarded = ((), {SUITE: options.guard}) if options.guard else ((SUITE,), {})
    rules = Rules(options.hours, options.versions, options.holdout, options.settle, options.most)
    canary = Canary(options.margin, options.error)
    folder, recipe = opened(run)
    gate = Gate(targets, guarded, options.error, options.score or recipe.live_score)
    parts = Parts(recipe, folder.model())
    recipe.prepare(progress)
    suites = {SUITE: suite_of(recipe, parts, options.tasks)}
    asyncio.run(_rehearse(parts, gate, suites, folder.model()))
    for suite in suites.values():
        suite.pin(folder.folder / "live" / "suites")
    return Live(
        folder.folder,
        Store(options.store or folder.folder / "served.db"),
        partial(learner_of, parts, options),
        partial(_examine, parts, gate, suites),
        Listening(rules, recipe.worth(), HACKS, recipe.kind, options.least, options.patience),
        Trying(options.share, canary, options.patience),
    )


def suite_of(recipe: Recipe, parts: Parts, tasks: int) -> PinnedSuite:
    """The run's held-out tasks, in the harness that it was trained in, sampled as people are answered."""
    bench = recipe.bench(recipe.suite(tasks=tasks))
    return PinnedSuite(SUITE, bench.tasks, bench.harness, bench.judge, sampling=parts.sampling)


def learner_of(parts: Parts, options: Options, model: Path) -> Learner:
    """One that goes on from the weights in a folder, by the run's own algorithm, at a constant rate, in the memory there is."""
    recipe, network = parts.recipe, Network.load(model, device=parts.recipe.device)
    algorithm, fit = recipe.loss(), parts.fit(network)
    reference = Network.load(model, device=recipe.device) if algorithm.reference else None
    return Learner(
        network,
        algorithm,
        options.lr or recipe.lr,
        reference=reference,
        optimizer=AdamW(options.substeps, momentum=recipe.momentum),
        compute=Compute(fit.micro_tokens, recipe.autocast, fit.recompute),
    )


async def _rehearse(parts: Parts, gate: Gate, suites: Mapping[str, PinnedSuite], model: Path) -> None:
    """InputError where the gate could not compare what the run's own model scores on a suite."""
    engine = fitting_engine(model, parts.renderer, parts.window.budget)
    for name, suite in suites.items():
        gate.check(name, await suite.measure(engine, 0, FIRST))


async def _examine(
    parts: Parts, gate: Gate, suites: Mapping[str, PinnedSuite], candidate: Path, version: int, incumbent: Path, before: int
) -> Decision:
    """The gate's decision, of two engines that nobody publishes to."""
    one, other = (
        fitting_engine(model, parts.renderer, parts.window.budget, version=number)
        for model, number in ((candidate, version), (incumbent, before))
    )
    return (await trial(gate, suites, one, other, batch=64)).decision


def told(cycle: Cycle) -> str:
    """A turn as lines of text: what it learned from, what it changed, what the gate and the canary said."""
    fates = ", ".join(f"{count} {fate}" for fate, count in sorted(cycle.fates.items()) if count)
    heard = " ".join(f"{name} {numbers['reward']:+.3f} ({numbers['episodes']:.0f})" for name, numbers in cycle.served.items())
    parts = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in cycle.seconds.items())
    origin = f"from {cycle.origin}" if cycle.origin else f"learned from {len(cycle.learned)} episodes ({fates})"
    lines = [f"cycle {cycle.number}: version {cycle.version}, on version {cycle.base}: {origin}"]
    lines += [f"  people: {heard}"] if heard else []
    lines += [f"  alarm: {alarm}" for alarm in cycle.alarms]
    lines += [f"  gate: {cycle.decision['verdict']}: {cycle.decision['reason']}"] if cycle.decision else []
    lines += [f"  canary: {cycle.canary['verdict']}: {cycle.canary['reason']}"] if "verdict" in cycle.canary else []
    return "\n".join([*lines, f"  {cycle.outcome.replace('_', ' ')}; {parts}"])
