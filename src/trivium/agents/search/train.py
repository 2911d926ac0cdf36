"""The whole line: base, teacher, warm-up, RL, and what it came to. Every rank walks it; rank 0 writes and talks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from trivium.agents.search.lessons import Lessons
from trivium.agents.search.recipe import Parts, Search
from trivium.agents.search.watcher import Silent, Watcher, embedding
from trivium.engine import Engine
from trivium.errors import CorruptError, InputError
from trivium.eval import Result, evaluate
from trivium.fleet import Rank, launch
from trivium.harness import refuse_gaps
from trivium.loops import Event, Pace, Plan, Run, rl, rollouts, sft, timed
from trivium.loops.run import read_json, write_json
from trivium.loops.track import TensorBoard, require
from trivium.nn import Network
from trivium.policy import Policy
from trivium.reward import opinions
from trivium.trace import Sampling, Store, Task
from trivium.train import SFT, AdamW, Checkpoints, Learner
from trivium.viewer.table import METRICS
from trivium.weights import publish

SFT_BATCH = 32
EVERY = 10  # steps between checkpoints, and between looks at held-out tasks
GLANCE = 64  # held-out tasks of such a look
LEAST = {
    "seed": 0, "window": 0, "results": 1, "warmup": 1, "teacher_tokens": 1, "sft_steps": 0, "steps": 0, "groups": 1, "size": 2,
    "branches": 0, "substeps": 1, "cap": 1, "lora": 0, "max_lag": 0, "eval_tasks": 1, "workers": 1,
}  # fmt: skip
_VAIN: tuple[tuple[str, Callable[[Search], bool], str], ...] = (
    ("cap", lambda r: r.cap != Search.cap and r.algorithm != "cispo", "it is CISPO's alone"),
    ("teacher-tokens", lambda r: r.teacher_tokens != Search.teacher_tokens and not r.teacher, "it is for a --teacher"),
    ("sft-lr", lambda r: r.sft_lr != Search.sft_lr and not r.sft_steps, "--sft-steps 0 has no warm-up"),
    (
        "warmup", lambda r: bool(r.corpus) and not r.sft_steps and r.warmup != Search(corpus=r.corpus).warmup,
        "--sft-steps 0 has no warm-up",
    ),
    ("teacher", lambda r: bool(r.teacher) and not r.sft_steps, "--sft-steps 0 has no warm-up"),
    ("without effort", lambda r: r.without == "effort" and bool(r.corpus), "on passages it has no price"),
    (
        "without blunders", lambda r: r.without == "blunders" and bool(r.corpus or r.teacher),
        "only the scripted teacher of generated worlds makes them",
    ),
)  # fmt: skip
"""Options that a recipe could not honour (law 7): which, when, and why."""
SHOWN = (*METRICS, "reward", "precision", "returned", "turns", "calls_per_turn", "searches", "tokens", "finished")


def train(recipe: Search, watch: Callable[[], Any]) -> None:
    """Run the recipe to its end, from where it was stopped. `watch` makes the Watcher of rank 0 (a context manager)."""
    check(recipe)
    if recipe.corpus:  # its vectors, for which no rank should have to wait, and whose number a person should see
        with watch() as watcher:
            Parts(recipe, embedding(watcher)).check()
    launch(_walk, recipe.workers, recipe, watch)


def check(recipe: Search) -> None:
    """What can be known to be wrong at once: a number out of its range, a folder that is not ours. InputError."""
    for name, least in LEAST.items():
        if not (given := getattr(recipe, name)) >= least or given == math.inf:
            raise InputError(f"--{name.replace('_', '-')} must be at least {least}, not {given}")
    for name in ("sft_lr", "lr"):
        if not 0 < getattr(recipe, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} must be between 0 and 1, not {getattr(recipe, name)}")
    if recipe.branches == 1:
        raise InputError("--branches 1 would have nothing to be compared with: 2 or more, or 0 for none")
    if not 0.5 <= recipe.skew <= 1:
        raise InputError(f"--skew is a share from 0.5 (few hops as often as many) to 1, not {recipe.skew}")
    for name in ("algorithm", "without", "device"):  # tyro sees to it on the command line
        if getattr(recipe, name) not in (known := get_args(get_type_hints(Search)[name])):
            raise InputError(f"--{name} is one of {', '.join(known)}, not {getattr(recipe, name)!r}")
    for name, vain, why in _VAIN:
        if vain(recipe):
            raise InputError(f"--{name} would change nothing: {why}")
    for name in ("groups", "eval_tasks"):
        if getattr(recipe, name) < recipe.workers:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} {getattr(recipe, name)} cannot be shared by --workers {recipe.workers}")
    if recipe.teacher and not all(recipe.teacher.partition("#")):
        raise InputError(f"--teacher {recipe.teacher!r} names no model: write URL#MODEL")
    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no CUDA device here")
    if recipe.track:
        require()
    Run(recipe.out).check(recipe.fields())


def _walk(rank: Rank, recipe: Search, watch: Callable[[], Any]) -> None:
    with watch() if rank.first else Silent() as watcher:
        line = _Line(rank, recipe, watcher)
        try:
            asyncio.run(line.walk())
        finally:
            line.run.close()


class _Line:
    """One rank's walk."""

    def __init__(self, rank: Rank, recipe: Search, watcher: Watcher) -> None:
        self.rank, self.recipe, self.watcher = rank, recipe, watcher
        self.parts, self.run = Parts(recipe), Run(recipe.out)
        self.network = self.parts.network()
        self.tracker: TensorBoard | None = None
        if rank.first:  # makes what the others then find: the run, its store, and the corpus' vectors in the cache
            self.parts.check()
            if recipe.teacher and not (self.run.folder / "recipe.json").exists():
                asyncio.run(self.parts.greet())
            self.run = Run.begin(recipe.out, recipe.fields())
            self.run.pin(self.parts.inputs(self.network))
            Store(self.run.folder / "episodes.db").close()
        rank.barrier()
        self.store = Store(self.run.folder / "episodes.db")
        self.checkpoints = Checkpoints(self.run.folder / "checkpoints")
        self.engine = self._engine(self.parts.model)
        self.probe = self.parts.renderer.opening([{"role": "user", "content": self.parts.train_tasks[0].prompt}])

    async def walk(self) -> None:
        stage, step = self._resume()
        if self.recipe.sft_steps:
            await self._evaluate("base", model=self.parts.model)
        if stage == "sft":
            await self._warm_up(step)
            stage, step = "rl", 0
        self._keep_warm(step)
        await self._evaluate("sft", model=self._warm)
        await self._evaluate("sft_greedy", greedy=True, model=self._warm)
        await self._reinforce(step)
        await self._evaluate("rl")
        await self._evaluate("rl_greedy", greedy=True)
        await self._evaluate("expert", policy=None if self.parts.real else self.parts.expert)
        if self.rank.first:
            self._conclude()
        self.rank.barrier()

    # --- the stages

    async def _warm_up(self, first: int) -> None:
        episodes = await Lessons(self.parts, self.store, self.run.folder, self.rank, self.watcher).kept()
        learner = self._learner("sft")
        self.watcher.stage("warm-up", self.recipe.sft_steps, first)
        events = sft(
            learner, episodes, steps=self.recipe.sft_steps, size=SFT_BATCH, seed=self.recipe.seed, first=first, rank=self.rank
        )
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
            self.parts.harness, self.parts.rl_tasks, self.engine, self.parts.scorer,
            Plan(
                groups=self.recipe.groups, size=self.recipe.size, steps=self.recipe.steps, first=first, seed=self.recipe.seed,
                branches=self.recipe.branches, sampling=self.parts.sampling,
            ),
            pace=Pace(self.recipe.max_lag), store=self.store, rank=self.rank,
        )  # fmt: skip
        if first == 0:
            await self._glance(0)
        events = rl(source, learner, self.engine, self.probe)
        async for event in timed(events, self.rank):
            shown = {"reward": "reward", "recall": "output_recall"}  # none where all attempts were overtaken
            self._tell(event, **{name: event.metrics[key] for name, key in shown.items() if key in event.metrics})
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
        sampling = Sampling(temperature=0.0, max_tokens=self.parts.window.reply) if greedy else self.parts.sampling
        self.watcher.stage(f"evaluate {name}", len(self.rank.share(self.parts.heldout_tasks)))
        result, attempts = await self._attempt(self.parts.heldout_tasks, policy, sampling, f"eval/{name}", True)
        episodes, scores = [episode for episode, _ in attempts], [scores for _, scores in attempts]
        self.store.write(episodes, opinions(episodes, scores, self.parts.judge))
        if self.rank.first:
            write_json(path, asdict(result))
        self.rank.barrier()

    async def _attempt(self, tasks: Sequence[Task], policy: Policy, sampling: Sampling, prefix: str, shown: bool = False):
        """This rank's share, attempted; every rank gets the whole result, and its own episodes with their scores."""
        mine, harness = self.rank.share(tasks), self.parts.harness
        part, attempts = await evaluate(
            harness, mine, policy, self.parts.judge, sampling=sampling, seed=self.recipe.seed + 1, prefix=prefix,
            at_once=self.engine.slots, progress=self.watcher.advance if shown else None,
        )  # fmt: skip
        refuse_gaps([episode for episode, _ in attempts])
        self.engine.clear()  # what comes next begins as it would in a resumed run
        return Result.merge(self.rank.gather(part)), attempts

    def _engine(self, model: str | Path) -> Engine:
        parts, network = self.parts, Network.load(model, device=self.recipe.device)
        return Engine(network, renderer=parts.renderer, slots=parts.slots, context=parts.window.budget)

    @property
    def _warm(self) -> Path:
        return self.run.folder / "model-sft"

    # --- the books

    def _learner(self, stage: str) -> Learner:
        """The learner of a stage, as its last checkpoint left it."""
        recipe, start = self.recipe, self.recipe.sft_steps
        if stage == "sft":
            learner = Learner(
                self.network,
                SFT(),
                recipe.sft_lr,
                policies={self.parts.teacher.name},
                optimizer=AdamW(schedule=lambda v: _warm_then_down(v, recipe.sft_steps)),
            )
        else:
            learner = Learner(
                self.network,
                self.parts.algorithm,
                recipe.lr,
                reference=Network.load(self._warm, device=recipe.device) if self.parts.algorithm.reference else None,
                optimizer=AdamW(recipe.substeps, lambda v: self.parts.rate(v - start), momentum=self.parts.momentum),
            )
        loaded = self.checkpoints.load(learner) if self.checkpoints.folders() else None
        if loaded and loaded.user["stage"] != stage:  # the stage before ended here: its weights, none of its momentum
            learner.optimizer.state.clear()
        return learner

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
        if self.rank.first and (last or step % EVERY == 0):
            self.checkpoints.save(learner, {"stage": stage, "step": step})
        if last or step % EVERY == 0:
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
        write_json(self.run.folder / "summary.json", summarize(self.run))


def summarize(run: Run) -> dict[str, Any]:
    """The table: means, 95% intervals, and RL over SFT paired task by task."""
    names = ["base", "sft", "sft_greedy", "rl", "rl_greedy", "expert"]
    found = {name: _result(run.result(name)) for name in names if run.result(name).exists()}
    pairs = (("rl", "sft"), ("rl_greedy", "sft_greedy"))
    paired = {f"{a}_minus_{b}": {name: list(found[a].minus(found[b], name)) for name in SHOWN} for a, b in pairs}
    known = {policy: result.means() for policy, result in found.items()}
    means = {policy: {name: known[policy].get(name) for name in SHOWN} for policy in found}
    intervals = {p: {name: list(r.interval(name)) for name in SHOWN if name in r.scores} for p, r in found.items()}
    tasks = len(found["rl"].tasks)
    return {**means, "intervals": intervals, "paired": paired, "tasks": tasks, "recipe": run.recipe()}


def _result(path: Path) -> Result:
    try:
        return Result(**read_json(path))
    except TypeError as error:
        raise CorruptError(f"{path} holds no result: remove it, and the same command measures it again") from error


def _warm_then_down(version: int, steps: int) -> float:
    """A tenth of the steps up, then down on a line to a tenth."""
    up = max(1, steps // 10)
    return (version + 1) / up if version < up else max(0.1, 1 - 0.9 * (version - up) / max(1, steps - up))
