"""The coder's recipe: what it refuses at once, what its tasks are worth, and its whole line from warm-up to a diff."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest

from trivium.agents.coder.recipe import Coder
from trivium.agents.coder.summary import TITLES
from trivium.errors import InputError, Unsupported
from trivium.eval import Gate, Result
from trivium.policy import Scripted
from trivium.policy.scripted import say
from trivium.reward import score
from trivium.sandbox import Ns
from trivium.train import CISPO

SMALL = Coder(sandbox="local-unsafe", warmup=4, groups=2, steps=1, eval_tasks=3, workers=1)


@pytest.mark.parametrize("wrong", [{"grades": (0, 9)}, {"grades": ()}, {"feedback": -1.0}, {"window": 100}])
def test_what_cannot_be_meant_is_refused(wrong, tmp_path):
    with pytest.raises(InputError):
        replace(SMALL, out=str(tmp_path / "run"), **wrong).check()


def test_the_expert_solves_what_doing_nothing_does_not():
    tasks = SMALL.tasks("heldout")

    async def both():
        harness, judge = SMALL.harness(), SMALL.judge()
        expert, idle = SMALL.ceiling(tasks), Scripted(lambda view: say("Done."), SMALL.renderer, "idle")
        runs = [[await harness.run(task, policy) for task in tasks] for policy in (expert, idle)]
        return [await score(episodes, judge) for episodes in runs]

    right, nothing = asyncio.run(both())
    assert all(each["solved"] == 1.0 and each["broken_calls"] == 0 for each in right)
    assert all(each["solved"] == 0.0 for each in nothing)
    assert min(each["reward"] for each in right) > 1.2 > max(each["reward"] for each in nothing)
    Gate(("projects",), score=SMALL.live_score).check("projects", Result.of("idle", tasks, [[row] for row in nothing]))


def test_tasks_of_training_and_held_out_have_nothing_in_common():
    train, heldout = (SMALL.tasks(split) for split in ("train", "heldout"))
    assert not {task.id for task in train} & {task.id for task in heldout}
    assert not {task.prompt for task in train} & {task.prompt for task in heldout}


def test_rl_attempts_other_tasks_than_the_lessons():
    lessons, attempted = ({task.prompt for task in tasks} for tasks in (SMALL.lesson_tasks(), SMALL.rl_tasks()))
    assert len(lessons) == SMALL.warmup and len(attempted) == SMALL.groups * SMALL.steps and not lessons & attempted
    assert replace(SMALL, steps=0).rl_tasks(), "a run without RL has some to tell memory by"


def test_feedback_is_a_term_of_its_loss():
    assert SMALL.loss().feedback is None and SMALL.loss().name == CISPO().name
    term = replace(SMALL, feedback=0.5).loss().feedback
    assert term is not None and term.weight == 0.5


@pytest.mark.parametrize("way", ["own", "prompted", "cut"])
def test_the_expert_goes_on_from_full_windows(way):
    """Tasks of three windows and more: it summarizes as it is asked, and reads again what is out of view."""
    long = replace(SMALL, grades=(4,), summary=way)
    tasks = long.tasks("heldout")

    async def attempts():
        episodes = [await long.harness().run(task, long.ceiling(tasks)) for task in tasks]
        return episodes, await score(episodes, long.judge())

    episodes, scores = asyncio.run(attempts())
    assert all(each["solved"] == 1.0 for each in scores)
    assert all(3 <= len(episode.threads[0].segments) <= 7 for episode in episodes)
    said = [long.renderer.decode(segment.tokens) for episode in episodes for segment in episode.threads[0].segments[1:]]
    assert way == "cut" or all("Your summary so far:" in text for text in said)
    assert way != "prompted" or all(f"{title}:" in said[0] for title in TITLES)
    paths = [[str(call.arguments.get("path")).strip() for call in episode.threads[0].calls] for episode in episodes]
    assert all(path.count("notes.txt") > 1 for path in paths)


@pytest.mark.parametrize("way", ["own", "prompted", "cut"])
def test_a_fact_outlives_its_window_in_a_summary_alone(way):
    """What is read first is needed last: with summaries the expert has it, and where turns are cut it says None."""
    memory = replace(SMALL, grades=(6,), window=896, summary=way)
    tasks = memory.tasks("heldout")

    async def attempts():
        episodes = [await memory.harness().run(task, memory.ceiling(tasks)) for task in tasks]
        return episodes, await score(episodes, memory.judge())

    episodes, scores = asyncio.run(attempts())
    assert all(each["solved"] == float(way != "cut") and each["unfinished"] == 0 for each in scores)
    segments = [episode.threads[0].segments for episode in episodes]
    assert all(3 <= len(each) <= 7 for each in segments)
    assert max(len(segment.tokens) for each in segments for segment in each) <= memory.window, "a script says more than fits"
    for task, episode in zip(tasks, episodes, strict=True):
        (edit,) = (call.arguments["new"] for call in episode.threads[0].calls if call.name == "edit_file")
        first, last = list(task.truth["facts"].values())[:: len(task.truth["facts"]) - 1]
        assert (first in edit) == (way != "cut") == ("None" not in edit) and (way == "cut" or last in edit)


def test_where_hints_teach_some_lessons_have_one():
    """Each second lesson gives a turn that went well, spoken with what it wrote before it."""
    with_hints = replace(SMALL, feedback=0.2)
    tasks = with_hints.lesson_tasks()

    async def attempts():
        return [await with_hints.harness().run(task, with_hints.lessons()) for task in tasks]

    episodes = asyncio.run(attempts())
    assert SMALL.select(episodes, [{}] * 4) == episodes
    lessons = with_hints.select(episodes, [{}] * 4)[4:]
    assert len(lessons) == 2
    for each in lessons:
        (segment,) = each.agent.segments
        (span,) = segment.sampled()
        before, said = (
            with_hints.renderer.decode(part) for part in (segment.tokens[: span.start], segment.tokens[span.start :])
        )
        assert 'Write "' in before.splitlines()[-2] and said.startswith("<tool_call>") and span.stop == len(segment.tokens)


def test_the_most_turns_are_those_of_the_hardest_grade():
    turns = [replace(SMALL, grades=grades).harness().limits.turns for grades in ((0,), (5, 6), (6, 0))]
    assert turns == [8, 80, 16]


def test_each_way_of_going_on_is_a_harness_of_its_own():
    digests = {replace(SMALL, summary=way).harness().digest for way in ("own", "prompted", "cut")}
    assert len(digests) == 3


def trivium(*words: str, cwd) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "trivium", *words], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def test_fix_says_what_is_missing(tmp_path):
    from trivium.agents.coder.verbs import fix

    with pytest.raises(InputError, match="the request is empty"):
        fix("runs/none", str(tmp_path), " ")
    with pytest.raises(InputError, match="has no files"):
        fix("runs/none", str(tmp_path), "Mend it.", sandbox="local-unsafe")


def test_the_command_trains_in_namespaces(tmp_path):
    """As a user types it, in the default sandbox: time is measured first, in an event loop of its own."""
    try:
        Ns()
    except Unsupported as error:
        pytest.skip(str(error))
    options = "--warmup 2 --sft-steps 1 --steps 1 --groups 2 --size 2 --eval-tasks 2 --workers 1"
    done = trivium("train", "coder", "--out", "run", *options.split(), cwd=tmp_path)
    assert done.returncode == 0 and "about" in done.stderr, done.stderr


@pytest.mark.slow
def test_the_whole_line_ends_in_a_diff(tmp_path):
    """Warm-up, RL with feedback, evaluation; compared by another process, when its sandboxes are gone; then a fix of
    somebody's folder, which stays as it was."""
    options = "--sandbox local-unsafe --warmup 32 --sft-steps 2 --steps 2 --groups 2 --size 2 --eval-tasks 4 --feedback 0.5"
    done = trivium("train", "coder", "--out", "run", *options.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for _ in range(2):  # the second time nothing is attempted
        done = trivium("eval", "--compare", "run", "--workers", "1", cwd=tmp_path)
        assert done.returncode == 0 and "detector: broken calls" in done.stdout, done.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "cart.py").write_text("def tax(price):\n    return price - fee\n")
    words = ("fix", "run", "mine", "In cart.py, tax uses fee. It should use rate.", "--sandbox", "local-unsafe")
    done = trivium(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Nothing was applied" in done.stdout or "It changed nothing." in done.stdout
    assert (tmp_path / "mine" / "cart.py").read_text() == "def tax(price):\n    return price - fee\n"
