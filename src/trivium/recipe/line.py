"""The whole line: base, lessons, warm-up, RL, and what it came to. Every rank walks it; rank 0 writes and talks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trivium.engine import Engine
from trivium.errors import CorruptError
from trivium.eval import Result, evaluate
from trivium.fleet import Rank, launch
from trivium.harness import refuse_gaps
from trivium.loops import Event, Pace, Run, rl, rollouts, sft, timed
from trivium.loops.run import read_json, write_json
from trivium.loops.track import TensorBoard
from trivium.nn import Network, give_back
from trivium.policy import Policy
from trivium.recipe.base import GLANCE, Recipe
from trivium.recipe.find import remember
from trivium.recipe.lessons import Lessons
from trivium.recipe.memory import Fit
from trivium.recipe.parts import Parts
from trivium.recipe.watcher import Silent, Watcher, embedding
from trivium.reward import opinions
from trivium.trace import Sampling, Store, Task
from trivium.train import SFT, AdamW, Checkpoints, Compute, Learner
from trivium.viewer.table import POLICIES
from trivium.weights import publish

EVERY = 10  # steps between checkpoints, and between looks at held-out tasks
PATIENCE = 120.0  # seconds after which a checkpoint is due before that: steps of a large model take minutes


def train(recipe: Recipe, watch: Callable[[], Any] = Silent) -> Run:
    """Run the recipe to its end, from where it was stopped. `watch` makes the Watcher of rank 0 (a context manager). Raises
    what `Recipe.check` raises, before anything is begun."""
    recipe.check()
    with watch() as watcher:  # what takes long, for which no rank should have to wait, and which a person should see
        recipe.prepare(embedding(watcher))
    launch(_walk, recipe.workers, recipe, watch, _fit(recipe))
    return Run.open(recipe.out)


def _fit(recipe: Recipe) -> Fit:
    """How each worker computes: as the run in the recipe's folder began, or as fits now. InputError where it does not fit."""
    path, parts = Run(recipe.out).folder / "memory.json", Parts(recipe)
    return parts.fit(parts.network(), Fit(**read_json(path)) if path.exists() else None)


def _walk(rank: Rank, recipe: Recipe, watch: Callable[[], Any], fit: Fit) -> None:
    with watch() if rank.first else Silent() as watcher:
        line = _Line(rank, recipe, watcher, fit)
        try:
            asyncio.run(line.walk())
        finally:
            line.run.close()


class _Line:
    """One rank's walk."""

    def __init__(self, rank: Rank, recipe: Recipe, watcher: Watcher, fit: Fit) -> None:
        self.rank, self.recipe, self.watcher, self.fit = rank, recipe, watcher, fit
        self.parts, self.run = Parts(recipe), Run(recipe.out)
        self.network, self.judge = self.parts.network(), recipe.judge()
        self.tracker: TensorBoard | None = None
        if rank.first:  # makes what the others then find: the run, its store, and the corpus' vectors in the cache
            self.parts.check()
            if recipe.teacher and not (self.run.folder / "recipe.json").exists():
                asyncio.run(self.parts.greet())
            self.run = Run.begin(recipe.out, recipe.fields())
            remember(self.run, type(recipe))
            self.run.pin(self.parts.inputs(self.network))
            write_json(self.run.folder / "memory.json", asdict(fit))
            Store(self.run.folder / "episodes.db").close()
        rank.barrier()
        self.store = Store(self.run.folder / "episodes.db")
        self.checkpoints = Checkpoints(self.run.folder / "checkpoints")
        self._saved = time.monotonic()
        self.engine = self._engine(self.parts.model)
        self.probe = self.parts.renderer.opening([{"role": "user", "content": self.parts.train_tasks[0].prompt}])

    async def walk(self) -> None:
        stage, step = self._resume()
        if self.parts.taught:
            await self._evaluate("base", model=self.parts.model)
        if stage == "sft" and self.parts.taught:
            await self._warm_up(step)
        if stage == "sft":
            step = 0
        self._keep_warm(step)
        await self._evaluate("sft", model=self._warm)
        await self._evaluate("sft_greedy", greedy=True, model=self._warm)
        await self._reinforce(step)
        await self._evaluate("rl")
        await self._evaluate("rl_greedy", greedy=True)
        await self._evaluate("expert", policy=self.recipe.ceiling(self.parts.heldout_tasks))
        if self.rank.first:
            self._conclude()
        self.rank.barrier()

    # --- the stages

    async def _warm_up(self, first: int) -> None:
        episodes = await Lessons(self.parts, self.store, self.run.folder, self.rank, self.watcher).selected()
        learner = self._learner("sft")
        self.watcher.stage("warm-up", self.recipe.sft_steps, first)
        events = sft(
            learner, episodes, steps=self.recipe.sft_steps, size=self.recipe.sft_size, seed=self.recipe.seed, first=first,
            rank=self.rank,
        )  # fmt: skip
        async for event in timed(events, self.rank):
            self._tell(event, loss=event.metrics["loss"])
            self._save(learner, "sft", event.step, last=event.step == self.recipe.sft_steps)
        publish(learner.network, learner.version, self.engine, self.probe)

    def _keep_warm(self, step: int) -> None:
        """The weights after the warm-up, for comparisons, and for an algorithm that stays near them."""
        if self.rank.first and step == 0 and not self._warm.exists():
            self.network.save(self._warm)
        self.rank.barrier()

    async def _reinforce(self, first: int) -> None:
        learner = self._learner("rl")
        publish(learner.network, learner.version, self.engine, self.probe)
        self.watcher.stage("RL", self.recipe.steps, first)
        source = rollouts(
            self.parts.harness, self.parts.rl_tasks, self.engine, self.recipe.scorer, self.parts.plan(first),
            pace=Pace(self.recipe.max_lag), store=self.store, rank=self.rank,
        )  # fmt: skip
        if first == 0:
            await self._glance(0)
        events = rl(source, learner, self.engine, self.probe)
        async for event in timed(events, self.rank):
            shown = self.recipe.panels.progress  # none where all attempts were overtaken
            self._tell(event, **{label: event.metrics[name] for name, label in shown.items() if name in event.metrics})
            if event.step % EVERY == 0 or event.step == self.recipe.steps:
                await self._glance(event.step)
            self._save(learner, "rl", event.step, last=event.step == self.recipe.steps)

    async def _glance(self, step: int) -> None:
        """A look at a few held-out tasks while training, sampled as in training; every rank takes one at least."""
        tasks = self.parts.heldout_tasks[: max(GLANCE, self.rank.size)]
        result, _ = await self._attempt(tasks, self.engine, self.parts.sampling, f"glance/{step}")
        if self.rank.first:
            self._log(Event("rl_eval", step, result.means()))

    async def _evaluate(
        self, name: str, greedy: bool = False, policy: Policy | None = None, model: str | Path | None = None
    ) -> None:
        """Attempt all held-out tasks once and keep the result; one that is kept already is not made again. `model`: with
        these weights, which the run's own engine may be past when a result was lost."""
        path = self.run.result(name)
        if any(self.rank.gather(path.exists())) or (name == "expert" and policy is None):
            return
        policy = policy or (self._engine(model) if model else self.engine)
        sampling = self.parts.greedy if greedy else self.parts.sampling
        self.watcher.stage(f"evaluate {name}", len(self.rank.share(self.parts.heldout_tasks)))
        result, attempts = await self._attempt(self.parts.heldout_tasks, policy, sampling, f"eval/{name}", True)
        episodes, scores = [episode for episode, _ in attempts], [scores for _, scores in attempts]
        self.store.write(episodes, opinions(episodes, scores, self.judge))
        if self.rank.first:
            write_json(path, asdict(result))
        give_back()
        self.rank.barrier()

    async def _attempt(self, tasks: Sequence[Task], policy: Policy, sampling: Sampling, prefix: str, shown: bool = False):
        """This rank's share, attempted; every rank gets the whole result, and its own episodes with their scores."""
        mine, harness = self.rank.share(tasks), self.parts.harness
        part, attempts = await evaluate(
            harness, mine, policy, self.judge, sampling=sampling, seed=self.recipe.seed + 1, prefix=prefix,
            at_once=self.engine.slots, progress=self.watcher.advance if shown else None,
        )  # fmt: skip
        refuse_gaps([episode for episode, _ in attempts])
        self.engine.clear()  # what comes next begins as it would in a resumed run
        return Result.merge(self.rank.gather(part)), attempts

    def _engine(self, model: str | Path) -> Engine:
        parts, network = self.parts, Network.load(model, device=self.recipe.device)
        return Engine(network, renderer=parts.renderer, slots=self.fit.slots, context=parts.window.budget)

    @property
    def _warm(self) -> Path:
        return self.run.folder / "model-sft"

    # --- the books

    def _learner(self, stage: str) -> Learner:
        """The learner of a stage, as its last checkpoint left it."""
        recipe, start = self.recipe, self.recipe.sft_steps if self.parts.taught else 0
        compute = Compute(self.fit.micro_tokens, recipe.autocast, self.fit.recompute)
        if stage == "sft":
            optimizer, who = AdamW(schedule=lambda v: _warm_then_down(v, recipe.sft_steps)), self._teachers()
            learner = Learner(self.network, SFT(), recipe.sft_lr, policies=who, optimizer=optimizer, compute=compute)
        else:
            algorithm = recipe.loss()
            reference = Network.load(self._warm, device=recipe.device) if algorithm.reference else None
            optimizer = AdamW(recipe.substeps, lambda v: recipe.rate(v - start), momentum=recipe.momentum)
            learner = Learner(self.network, algorithm, recipe.lr, reference=reference, optimizer=optimizer, compute=compute)
        loaded = self.checkpoints.load(learner) if self.checkpoints.folders() else None
        if loaded and loaded.user["stage"] != stage:  # the stage before ended here: its weights, none of its momentum
            learner.optimizer.state.clear()
        return learner

    def _teachers(self) -> set[str]:
        """Whose words the warm-up imitates."""
        teacher = self.parts.teacher
        return {teacher.name} if teacher else {episode.agent.policy for episode in self.parts.log}

    def _resume(self) -> tuple[str, int]:
        """The stage and step to go on from; what the books say beyond it is struck out, for it will be done again."""
        probe = Learner(self.network, SFT(), 0.0)
        loaded = self.checkpoints.load(probe) if self.checkpoints.folders() else None
        stage, step = (loaded.user["stage"], loaded.user["step"]) if loaded else ("sft", 0)
        if stage == "sft" and step == self.recipe.sft_steps:
            stage, step = "rl", 0
        for torn in loaded.skipped if loaded else ():
            self.watcher.note(f"{torn}; going on from the one before")
        if self.rank.first:
            self.run.forget_after("rl", step if stage == "rl" and step else -1)
            if stage == "sft":
                self.run.forget_after("sft", step)
            if self.recipe.track:
                self.tracker = TensorBoard(self.run.folder / "tensorboard", self.run.events())
        self.rank.barrier()
        if loaded:  # an evaluation that is still owed is made with these weights
            publish(self.network, loaded.version, self.engine, self.probe)
        return stage, step

    def _save(self, learner: Learner, stage: str, step: int, last: bool) -> None:
        """A checkpoint where one is due. That others wait for it is decided by the step alone, which all ranks know."""
        regular = last or step % EVERY == 0
        if self.rank.first and (regular or time.monotonic() - self._saved > PATIENCE):
            self.checkpoints.save(learner, {"stage": stage, "step": step})
            self._saved = time.monotonic()
            give_back()
        if regular:
            self.rank.barrier()

    def _tell(self, event: Event, **numbers: float) -> None:
        if self.rank.first:
            self._log(event)
        self.watcher.advance(1, **numbers)

    def _log(self, event: Event) -> None:
        self.run.log(event)
        if self.tracker:
            self.tracker.log(event)

    def _conclude(self) -> None:
        model = self.run.folder / "model"
        if not model.exists():
            self.network.save(model)
        write_json(self.run.folder / "summary.json", summarize(self.run, self.recipe.panels.table))


def summarize(run: Run, shown: Sequence[str] = ()) -> dict[str, Any]:
    """The table: means, 95% intervals, and RL over SFT paired task by task, of all scores and of those `shown`, which may be
    of no task."""
    results = {name: _result(run.result(name)) for name in POLICIES if run.result(name).exists()}
    numbers = sorted({name for result in results.values() for name in result.scores} | {*shown})
    pairs = (("rl", "sft"), ("rl_greedy", "sft_greedy"))
    paired = {f"{a}_minus_{b}": {n: list(results[a].minus(results[b], n)) for n in numbers} for a, b in pairs}
    intervals = {p: {n: list(r.interval(n)) for n in numbers if n in r.scores} for p, r in results.items()}
    known = {policy: result.means() for policy, result in results.items()}
    means = {policy: {name: known[policy].get(name) for name in numbers} for policy in results}
    return {**means, "intervals": intervals, "paired": paired, "tasks": len(results["rl"].tasks), "recipe": run.recipe()}


def _result(path: Path) -> Result:
    try:
        return Result(**read_json(path))
    except TypeError as error:
        raise CorruptError(f"{path} holds no result: remove it, and the same command measures it again") from error


def _warm_then_down(version: int, steps: int) -> float:
    """A tenth of the steps up, then down on a line to a tenth."""
    up = max(1, steps // 10)
    return (version + 1) / up if version < up else max(0.1, 1 - 0.9 * (version - up) / max(1, steps - up))
