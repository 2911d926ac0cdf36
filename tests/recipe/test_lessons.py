"""Lessons whose teacher, or its place, breaks: begun anew, and never imitated (law 12)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from trivium.clock import SimulatedClock
from trivium.errors import PolicyError
from trivium.fleet import Rank
from trivium.loops.run import read_json
from trivium.loops.simulated import SimulatedHarness
from trivium.policy import Reply
from trivium.recipe.lessons import Lessons
from trivium.recipe.watcher import Silent
from trivium.trace import Episode, Store, Task

TASKS = [Task(f"t{number}", "?") for number in range(4)]


@dataclass
class Teacher:
    """Breaks in its last turn so many times at each of some tasks."""

    breaks: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    turns: int = 1
    name, renderer, version = "teacher", None, 0

    async def speak(self, view, sampling):
        _, task, _, _, turn = view.stream
        self.asked.append(task)
        if turn == self.turns - 1 and self.breaks.get(task, 0):
            self.breaks[task] -= 1
            raise PolicyError("503, three times")
        return Reply([1], [-1.0], [0], [1.0])


class Notes(Silent):
    """What a person is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


async def worthless(episode: Episode) -> dict[str, float]:
    return {"reward": 0.0}


def lessons(teacher: Teacher, folder: Path, rank: Rank = Rank()) -> tuple[list[str], list[str], float]:
    """The ids of the lessons, what a person is told, and how long it took."""
    recipe = SimpleNamespace(seed=0, scorer=lambda step: worthless, select=lambda episodes, scores: episodes)
    parts = SimpleNamespace(recipe=recipe, teacher=teacher, log=[], harvest=None, lesson_tasks=TASKS, lesson_count=4)
    parts.harness = SimulatedHarness(lambda task, sample: teacher.turns)
    store, notes, clock = Store(folder / "episodes.db"), Notes(), SimulatedClock()
    try:
        selected = clock.run(Lessons(parts, store, folder, rank, notes).selected())
    finally:
        kept = [each.id for each in store.select("teacher/")]
        store.close()
    assert {each.id for each in selected} <= set(kept) and all(each.agent.stop.reason == "finished" for each in selected)
    assert rank.size > 1 or len(kept) == len(selected), "what broke is not kept either"
    return [each.id for each in selected], notes.texts, clock.now()


def test_a_lesson_that_broke_is_begun_anew(tmp_path):
    teacher = Teacher({"t1": 2})
    ids, notes, seconds = lessons(teacher, tmp_path)
    assert ids == [f"teacher/t{number}/0" for number in range(4)] and not notes
    assert seconds == 1 + 10 and sorted(teacher.asked) == ["t0", "t1", "t1", "t1", "t2", "t3"]


def test_one_that_stays_broken_is_counted_and_left_out(tmp_path):
    teacher = Teacher({"t1": 99})
    ids, notes, _ = lessons(teacher, tmp_path)
    assert ids == ["teacher/t0/0", "teacher/t2/0", "teacher/t3/0"]
    assert notes == ["1 episodes of the teacher broke each time (503, three times): going on without them"]
    assert read_json(tmp_path / "teacher.json") == {"episodes": 3, "lessons": 3}
    asked = len(teacher.asked)
    assert lessons(teacher, tmp_path)[0] == ids and len(teacher.asked) == asked, "the warm-up goes on with the same"
    (tmp_path / "teacher.json").unlink()
    assert len(lessons(Teacher(), tmp_path)[0]) == 4, "a run that was stopped before asks for it again"


def test_where_all_stay_broken_the_run_ends_with_the_reason(tmp_path):
    with pytest.raises(PolicyError, match="503, three times"):
        lessons(Teacher({task.id: 99 for task in TASKS}, turns=2), tmp_path)


def test_ranks_go_on_together_where_one_leaves_some_out(tmp_path):
    together, values = threading.Barrier(2), [None, None]

    @dataclass(frozen=True)
    class Worker(Rank):
        def gather(self, value):
            values[self.number] = value
            together.wait(30)
            every = list(values)
            together.wait(30)
            return every

    for _ in range(2):  # the second finds the book closed
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(lessons, Teacher({"t3": 99}), tmp_path, Worker(number, 2)) for number in range(2)]
            (first, told, _), (second, _, _) = (each.result() for each in both)
        assert first == second == ["teacher/t0/0", "teacher/t1/0", "teacher/t2/0"]
    assert not told
