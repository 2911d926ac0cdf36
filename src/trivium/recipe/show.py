"""`trivium show`: a run's table and episodes, or the episodes of a store; and what a person sees when training has ended."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from trivium.errors import InputError, TriviumError
from trivium.loops.run import Run, read_json
from trivium.policy import Renderer
from trivium.recipe.base import GLANCE, Recipe
from trivium.recipe.find import class_of
from trivium.trace import Episode, Store, Task
from trivium.viewer import Condition, Labels, episode_panel, facts, learning_curve, legend, screen, side_by_side, summary_table
from trivium.viewer.reading import Decode
from trivium.viewer.table import POLICIES

RunFolder = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
Conditions = Annotated[tuple[str, ...], tyro.conf.arg(metavar="CONDITION [CONDITION ...]")]
BESIDE = ("base", "sft", "rl")
"""The policies whose episodes of one task stand side by side."""

Scored = tuple[Episode, dict[str, float]]


def show(
    run: RunFolder,
    episode: str = "",
    count: int = 3,
    policy: str = "",
    task: str = "",
    worst: bool = False,
    best: bool = False,
    where: Conditions = (),
) -> None:
    """Read a run, finished or not: its table, its curve's place, and episodes. Or episodes alone, of a store of your own.

    Args:
        run: the run's folder, or the file of a store (`Store("episodes.db")`)
        episode: ids that begin with this, such as eval/rl/ or rl/12/ or teacher/, instead of held-out episodes and the table
        count: how many episodes
        policy: whose held-out episodes: base, sft, sft_greedy, rl, rl_greedy, expert; default: rl, or how far the run is
        task: this task alone, side by side: by the base, after the warm-up, after RL; with --policy or --episode by one of them
        worst: the episodes with the lowest reward
        best: the episodes with the highest reward
        where: only episodes of which this is so: "f1<0.5", hops=3, stop!=finished; of several, all
    """
    choice = _Choice(tuple(map(Condition.of, where)), best, worst, count)
    choice.check()
    if episode and policy:
        raise InputError("--episode and --policy name the episodes in two ways: give one of them")
    beside = bool(task) and not (episode or policy)
    if beside and choice != _Choice():
        raise InputError("--task alone shows one episode of each policy: choose among those of one with --policy or --episode")
    with Book.open(run) as book:
        if policy and not book.run:
            raise InputError(f"{run} is a store and no run: --episode names its episodes, by how their ids begin")
        if beside:
            book.print_beside(screen(), book.of_task(task))
            return
        prefix = episode or (f"eval/{policy}/" if policy else book.furthest())
        episodes = choice.of(book.episodes(prefix, task))
        if not episode:
            book.print_table(screen())
        book.print_episodes(screen(), episodes)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which of many episodes: those that meet all conditions, the best or the worst first, so many."""

    conditions: tuple[Condition, ...] = ()
    best: bool = False
    worst: bool = False
    count: int = 3

    def check(self) -> None:
        """InputError for what cannot be meant."""
        if self.count < 1:
            raise InputError(f"--count must be at least 1, not {self.count}")
        if self.best and self.worst:
            raise InputError("--best and --worst are two orders: give one of them")

    def of(self, episodes: Iterable[Scored]) -> list[Scored]:
        """InputError where a condition is about what no episode has, and where none is left."""
        names: set[str] = set()

        def fitting() -> Iterator[Scored]:
            for each, scores in episodes:
                known = facts(each, scores)
                names.update(known)
                if all(condition.holds(known) for condition in self.conditions):
                    yield each, scores

        chosen = self._first(fitting())
        if not chosen:
            for condition in self.conditions:
                condition.check(names)
            what = " and ".join(map(str, self.conditions)) or "with a reward"
            raise InputError(f"there is no episode {what}")
        return chosen

    def _first(self, episodes: Iterator[Scored]) -> list[Scored]:
        if not (self.best or self.worst):
            return list(islice(episodes, self.count))
        rated = (each for each in episodes if each[1].get("reward") == each[1].get("reward", 0.0))
        return (heapq.nlargest if self.best else heapq.nsmallest)(self.count, rated, key=lambda each: each[1]["reward"])


@dataclass(frozen=True)
class Book:
    """A store of episodes, of a run or alone, and how they are read: `renderer` where it is no run's own. Nothing in it is
    written."""

    name: str
    store: Store
    run: Run | None
    agent: type[Recipe]
    renderer: Renderer | None = None

    @classmethod
    def open(cls, name: str) -> Book:
        """InputError for what is neither a run nor a store, and for a run that has no episodes yet."""
        run = None if Path(name).is_file() else Run.open(name)
        file = run.folder / "episodes.db" if run else Path(name)
        if not file.is_file():
            raise InputError(f"{name} holds no episodes yet")
        return cls(name, Store(file, readonly=True), run, class_of(run) if run else Recipe)

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()  # which takes away what SQLite lays beside a store while it is read

    @property
    def finished(self) -> bool:
        return self.run is not None and self.run.finished

    def episodes(self, prefix: str, task: str = "") -> Iterator[Scored]:
        """Those whose ids begin so, with their scores; of one task where it is named. InputError that says what there is."""
        none = True
        for each in self.store.select(prefix=prefix, task=task or None):
            none = False
            yield each, self.store.first_scores(each.id)
        if none and task:
            raise InputError(f"{self.name} has no such episode of the task {task!r}; {self._some_tasks()}")
        if none:
            raise InputError(f"{self.name} holds no episode whose id begins with {prefix!r}; {self._stages()}")

    def furthest(self) -> str:
        """The last stage that has episodes; of a store that is no run, all."""
        stages = ("eval/rl/", "rl/", "eval/sft/", "teacher/", "eval/base/") if self.run else ("",)
        return next(filter(self._any, stages), stages[0])

    def of_task(self, task: str) -> list[tuple[str, Scored]]:
        """One episode of a task by each policy of a run, or the first of it in a store, with what stands above it."""
        if not self.run:
            return [(each[0].id, each) for each in islice(self.episodes("", task), len(BESIDE))]
        there = [name for name in BESIDE if any(self.store.select(prefix=f"eval/{name}/", task=task, limit=1))]
        if not there:
            raise InputError(f"{self.name} has no held-out episode of the task {task!r}; {self._some_tasks()}")
        return [(POLICIES[name], next(self.episodes(f"eval/{name}/", task))) for name in there]

    # --- on the screen

    def print_table(self, console: Console) -> None:
        """The table of a finished run, and where its curve is."""
        if self.run and self.finished:
            console.print(summary_table(read_json(self.run.folder / "summary.json"), self.agent.panels.table))
            console.print(f"curve: {self.run.folder}/curve.png", soft_wrap=True)

    def print_episodes(self, console: Console, episodes: Sequence[Scored]) -> None:
        """One below the other, and what their signs mean."""
        labels = self.agent.labels
        for each, scores in episodes:
            console.print(episode_panel(each, self.decode, scores, labels=labels, texts=self.texts(each)))
        console.print(legend(labels, [each.task for each, _ in episodes]))

    def print_beside(self, console: Console, columns: Sequence[tuple[str, Scored]]) -> None:
        """Episodes of one task side by side, each below its name, and what their signs mean."""
        labels, shown = self.agent.labels, [(name, each) for name, (each, _) in columns]
        scores = {each.id: numbers for _, (each, numbers) in columns}
        texts = {each.id: self.texts(each) for _, each in shown}
        console.print(side_by_side(shown, console.width, self.decode, scores, labels, texts))
        console.print(legend(labels, [each.task for _, each in shown]))

    @cached_property
    def decode(self) -> Decode | None:
        """Tokens to text, as the model of the run or server has them, a base while it trains; None for a store alone."""
        if self.renderer:
            return self.renderer.decode
        if self.run and self.finished:
            return Renderer.load(self.run.model()).decode
        try:
            return self.recipe.renderer.decode if self.recipe else None
        except TriviumError:  # its base is not there any more, and all else can be read
            return None

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe of a run, as its folder keeps it."""
        return self.agent.of(self.run.recipe(), str(self.run.folder)) if self.run else None

    def texts(self, episode: Episode) -> dict[str, str]:
        """The text of each document that the task asks for and this episode never saw: as another episode of the task saw it,
        or as the agent's own documents have it."""
        labels, task = self.agent.labels, episode.task
        missing = set(labels.gold(task)) - _seen(episode, labels).keys()
        found: dict[str, str] = {}
        for other in self.store.select(task=task.id) if missing else ():
            found = {**_seen(other, labels), **found}
            if missing <= found.keys():
                break
        return {id: text for id, text in {**self._documents(task, missing - found.keys()), **found}.items() if id in missing}

    def _documents(self, task: Task, ids: set[str]) -> dict[str, str]:
        if not (self.run and ids):
            return {}
        try:
            return dict(self.agent.of(self.run.recipe(), str(self.run.folder)).texts(task))
        except TriviumError:  # they are not there any more, and all else can be read
            return {}

    # --- what there is

    def _stages(self) -> str:
        stages = [stage for stage in ("teacher/", "rl/") if self._any(stage)]
        policies = [policy for policy in POLICIES if self._any(f"eval/{policy}/")]
        options = [f"--{option} {', '.join(names)}" for option, names in (("episode", stages), ("policy", policies)) if names]
        if options:
            return f"there are {' and '.join(options)}"
        return next((f"the first is called {each.id}" for each in self.store.select(limit=1)), "there is none yet")

    def _some_tasks(self) -> str:
        some = dict.fromkeys(each.task.id for each in self.store.select(prefix=self.furthest(), limit=3))
        return f"the first are called {', '.join(some)}" if some else "there is none yet"

    def _any(self, prefix: str) -> bool:
        return any(True for _ in self.store.select(prefix=prefix, limit=1))


def _seen(episode: Episode, labels: Labels) -> dict[str, str]:
    """The documents of which an episode saw a passage, and the first that it saw."""
    pieces = [piece for thread in episode.threads for piece in thread.passages]
    return {labels.document(piece.source, episode.task): piece.shown for piece in reversed(pieces)}


def report(run: Run, console: Console) -> None:
    """What a person sees when training has ended: three episodes side by side, the table, and where things are."""
    summary, panels = read_json(run.folder / "summary.json"), class_of(run).panels
    with Book.open(str(run.folder)) as book:
        book.print_beside(console, book.of_task(_telling(book.store)))
    console.print(summary_table(summary, panels.table))
    learning_curve(run.events(), summary, run.folder / "curve.png", panels, min(GLANCE, summary["tasks"]))
    for name, place in (("table", "summary.json"), ("curve", "curve.png")):
        console.print(f"{name}: {run.folder / place}", soft_wrap=True)
    console.print(f"read on: trivium show {run.folder}", soft_wrap=True)


def _telling(store: Store) -> str:
    """The task whose held-out episode shows most: one that edited its context if any did, did well, and made many calls."""

    def rank(episode: Episode) -> tuple[float, float, float, str]:
        reward = store.first_scores(episode.id).get("reward", 0.0)
        return -len(episode.ops), -reward, -len(episode.agent.calls), episode.id

    return min(store.select(prefix="eval/rl/"), key=rank).task.id
