"""`--warmup-from RUN`: which of a run's episodes become lessons, what is kept of where they came from, and what is refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from examples.agent import Staff
from tests.conftest import make_tiny_model
from trivium.assets import NANO
from trivium.errors import InputError
from trivium.harness import Harness
from trivium.loops.run import Run, write_json
from trivium.policy import Renderer, Scripted
from trivium.policy.scripted import call, say
from trivium.recipe import train
from trivium.recipe.find import remember
from trivium.recipe.harvest import Harvest
from trivium.recipe.parts import Parts
from trivium.trace import Episode, Score, Store

RIGHT, WRONG = True, False


@pytest.fixture(scope="module")
def renderer():
    return Renderer.load(NANO)


def attempt(renderer, number: int, right: bool, id: str = "", split: str = "train", harness: Harness | None = None) -> Episode:
    """An attempt at a task of Staff: one look-up, then the right city or none."""
    staff = Staff()
    task = staff.tasks(split)[number]
    script = [call(("look_up", {"person": f" {task.id}"})), say(f" {task.truth['city']}" if right else " nowhere")]
    policy = Scripted(script, renderer, "agent")
    return asyncio.run((harness or staff.harness()).run(task, policy, id=id or f"rl/0/{task.id}/0"))


def run_of(folder: Path, *attempts: tuple[Episode, float], model: Path = NANO) -> Run:
    """A finished run of Staff with these episodes and rewards."""
    run = Run.begin(folder, Staff(out=str(folder)).fields())
    run.close()
    remember(run, Staff)
    (folder / "model").symlink_to(model)
    write_json(folder / "summary.json", {})
    store = Store(folder / "episodes.db")
    store.write([episode for episode, _ in attempts], [Score(e.id, "reward", reward, "right") for e, reward in attempts])
    store.score([Score(e.id, "reward", 1.0 - reward, "somebody") for e, reward in attempts])  # a later opinion of another
    store.close()
    return run


def ids(episodes) -> list[str]:
    return [episode.id for episode in episodes]


def test_only_what_went_well_once_each_and_the_newest_first(tmp_path, renderer):
    first, second = attempt(renderer, 0, RIGHT, "rl/0/a"), attempt(renderer, 1, RIGHT, "rl/1/b")
    again, wrong = attempt(renderer, 0, RIGHT, "rl/2/a"), attempt(renderer, 2, WRONG, "rl/2/c")
    measured, taught = attempt(renderer, 0, RIGHT, "rl/2/d", "heldout"), attempt(renderer, 3, RIGHT, "teacher/e")
    cut = attempt(renderer, 4, RIGHT, "rl/2/e")
    cut.agent.stop = replace(cut.agent.stop, reason="length")
    run = run_of(
        tmp_path / "run", (first, 1), (second, 1), (again, 1), (wrong, 0), (measured, 1), (taught, 1), (cut, 1)
    )  # fmt: skip
    harvest = Harvest(Staff(warmup_from=str(run.folder)))
    assert ids(harvest.lessons) == ["rl/2/a", "rl/1/b"]
    kept = json.loads(json.dumps(harvest.provenance()))
    assert kept["episodes"] == {"rl/2/a": 1.0, "rl/1/b": 1.0} and kept["run"] == str(run.folder) and kept["above"] == 1.0
    assert kept["recipe"]["people"] == 448
    expected = {"below the threshold": 1, "repeated": 1, "held out": 1, "unfinished, or branches": 1, "more than --warmup": 0}
    assert kept["left_out"] == expected
    assert ids(Harvest(Staff(warmup_from=str(run.folder), warmup=1)).lessons) == ["rl/2/a"]
    assert len(Harvest(Staff(warmup_from=str(run.folder), warmup_above=0.0)).lessons) == 3


def test_a_run_is_warmed_up_on_them_and_goes_on_with_the_same_alone(tmp_path, renderer):
    episodes = [(attempt(renderer, number, RIGHT), 1.0) for number in range(4)]
    first = run_of(tmp_path / "first", *episodes)
    options = dict(people=80, sft_steps=1, steps=1, groups=2, size=2, eval_tasks=2, workers=1, warmup_from=str(first.folder))
    recipe = Staff(out=str(tmp_path / "second"), **options)
    second = train(recipe)
    assert json.loads((second.folder / "teacher.json").read_text()) == {"episodes": 4, "lessons": 4}
    assert len(json.loads((second.folder / "warmup-from.json").read_text())["episodes"]) == 4
    assert [event.kind for event in second.events()].count("sft") == 1
    store = Store(first.folder / "episodes.db")
    store.write([later := attempt(renderer, 5, RIGHT)], [Score(later.id, "reward", 1.0, "right")])
    store.close()
    with pytest.raises(InputError, match="begun with other lessons"):
        train(recipe)


def test_what_cannot_teach_this_agent_is_refused(tmp_path, renderer):
    good = attempt(renderer, 0, RIGHT)
    bad = run_of(tmp_path / "bad", (attempt(renderer, 0, WRONG), 0.0))
    with pytest.raises(InputError, match=r"no episode with a reward of 1 to learn from \(1 below the threshold\)"):
        _ = Harvest(Staff(warmup_from=str(bad.folder))).lessons
    other = Harness(Staff().harness().tools.values(), Staff().harness().window, "Be brief.", specs=False)
    elsewhere = run_of(tmp_path / "elsewhere", (attempt(renderer, 0, RIGHT, harness=other), 1.0))
    with pytest.raises(InputError, match="lived in another harness"):
        _ = Harvest(Staff(warmup_from=str(elsewhere.folder))).lessons
    foreign = run_of(tmp_path / "foreign", (good, 1.0), model=make_tiny_model(tmp_path / "tiny"))
    with pytest.raises(InputError, match="speaks with another tokenizer"):
        _ = Harvest(Staff(warmup_from=str(foreign.folder))).lessons
    (bad.folder / "summary.json").unlink()
    with pytest.raises(InputError, match="has no trained model yet"):
        Parts(Staff(warmup_from=str(bad.folder))).log  # noqa: B018


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"warmup_from": "runs/first", "sft_steps": 0}, "--warmup-from would change nothing: --sft-steps 0 has no warm-up"),
        ({"warmup_from": "runs/first", "teacher": "u#m"}, "--teacher would change nothing: the lessons are those of"),
        ({"warmup_above": 0.5}, "--warmup-above would change nothing: it is for --warmup-from"),
    ],
)
def test_options_that_would_change_nothing(tmp_path, options, why):
    with pytest.raises(InputError, match=why):
        Staff(out=str(tmp_path / "run"), **options).check()
