"""A pinned suite is the same suite or another one; a trial on it stops when the gate has decided."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from trivium.errors import CorruptError, InputError
from trivium.eval import Gate, PinnedSuite, Result, trial
from trivium.harness import Harness, Limits, Window, tool
from trivium.policy import Scripted
from trivium.policy.scripted import say
from trivium.trace import Sampling, Task

GATE = Gate(("sums",), {"words": 0.2})


@tool
def look_up(scene, word: str) -> str:
    """Look a word up."""
    return word


async def right(episode):
    return {"reward": float(episode.agent.answer == episode.task.truth["answer"])}


@pytest.fixture
def suite(tmp_path) -> PinnedSuite:
    (tmp_path / "data.txt").write_text("facts")
    tasks = [Task(f"t{n}", f"{n}?", truth={"answer": str(n)}) for n in range(60)]
    return PinnedSuite("sums", tasks, Harness([look_up], Window(2000), "Count."), right, data=[tmp_path / "data.txt"])


def knows(renderer, share: float, version: int = 0) -> Scripted:
    """A policy that is right on this share of the tasks."""

    def script(view):
        number = view.stream[1]
        return say(number[1:] if int(number[1:]) < 60 * share else "no")

    return Scripted(script, renderer, f"knows {share}", version)


# --- the manifest


def test_a_suite_that_is_as_it_was_is_the_same(suite, tmp_path):
    assert suite.pin(tmp_path / "pins") == suite.pin(tmp_path / "pins") == suite.digest


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("tasks", lambda s: replace(s, tasks=s.tasks[1:])),
        ("tasks", lambda s: replace(s, tasks=[replace(s.tasks[0], truth={"answer": "1"}), *s.tasks[1:]])),
        ("harness", lambda s: replace(s, harness=s.harness.with_prompt("Count well."))),
        ("harness", lambda s: replace(s, harness=Harness([look_up], Window(2000), "Count.", limits=Limits(turns=3)))),
        ("tool look_up", lambda s: replace(s, harness=Harness([], Window(2000), "Count."))),
        ("seeds and sampling", lambda s: replace(s, seed=1)),
        ("seeds and sampling", lambda s: replace(s, sampling=Sampling(temperature=0.5))),
    ],
)
def test_a_suite_with_another_part_is_another_suite(suite, tmp_path, part, change):
    suite.pin(tmp_path / "pins")
    with pytest.raises(InputError, match=rf"suite sums has other .*{part}.* than when it was pinned"):
        change(suite).pin(tmp_path / "pins")


def test_a_suite_whose_file_changed_is_another_suite(suite, tmp_path):
    suite.pin(tmp_path / "pins")
    (tmp_path / "data.txt").write_text("other facts")
    with pytest.raises(InputError, match="suite sums has other .*data.txt than"):
        suite.pin(tmp_path / "pins")
    (tmp_path / "data.txt").unlink()
    with pytest.raises(InputError, match="data.txt, which is gone"):
        suite.pin(tmp_path / "pins")


def test_another_version_of_the_judge_is_another_suite(suite, tmp_path):
    suite.pin(tmp_path / "pins")

    async def judge(episode):
        return {"reward": 1.0}

    judge.__name__, judge.version = "right", "2"
    with pytest.raises(InputError, match="other judge than"):
        replace(suite, scorer=judge).pin(tmp_path / "pins")


def test_the_code_of_a_tool_is_pinned(suite, tmp_path):
    """Two tools alike but for what they do."""
    head = "from trivium.harness import tool\n@tool\ndef look_up(scene, word: str) -> str:\n"
    code = head + '    """Look a word up."""\n    return {}\n'
    digests = set()
    for number, returned in enumerate(("word", "word + '!'")):
        path = tmp_path / f"tools_{number}.py"
        path.write_text(code.format(returned))
        names: dict = {}
        exec(compile(path.read_text(), str(path), "exec"), names)
        manifest = replace(suite, harness=Harness([names["look_up"]], Window(2000), "Count.")).manifest()
        assert manifest["harness"] == suite.manifest()["harness"]
        digests.add(manifest["tool look_up"])
    assert len(digests) == 2


def test_a_torn_manifest_is_named(suite, tmp_path):
    (tmp_path / "sums.json").write_text("{")
    with pytest.raises(CorruptError, match="sums.json is torn"):
        suite.pin(tmp_path)


# --- results


def test_results_of_a_suite_that_changed_are_not_compared(suite, renderer, tmp_path):
    before = asyncio.run(suite.measure(knows(renderer, 0.5), last=4))
    (tmp_path / "data.txt").write_text("other facts")
    after = asyncio.run(suite.measure(knows(renderer, 0.5), last=4))
    assert before.tasks == after.tasks
    with pytest.raises(InputError, match="the suite changed between two results"):
        after.paired(before, "reward")


def test_tasks_come_in_an_order_drawn_by_the_seed(suite, renderer):
    parts = [asyncio.run(suite.measure(knows(renderer, 0.5), first, first + 5)) for first in (0, 5)]
    whole = asyncio.run(suite.measure(knows(renderer, 0.5), last=10))
    assert Result.merge(parts).tasks == whole.tasks != [task.id for task in suite.tasks[:10]]


# --- a trial


def tried(suite, renderer, candidate, incumbent, batch=10):
    suites = {"sums": suite, "words": replace(suite, name="words")}
    return asyncio.run(trial(GATE, suites, knows(renderer, candidate), knows(renderer, incumbent), batch))


def test_a_trial_stops_when_it_is_decided(suite, renderer):
    better, worse = tried(suite, renderer, 0.9, 0.3), tried(suite, renderer, 0.3, 0.9)
    assert (better.decision.verdict, worse.decision.verdict) == ("promote", "reject")
    assert 10 <= len(better.candidate["sums"].tasks) < 60 and len(worse.candidate["sums"].tasks) < 60
    assert better.candidate["sums"].tasks == better.incumbent["sums"].tasks


def test_a_trial_without_a_difference_asks_all_tasks_of_the_target_alone(suite, renderer):
    same = tried(suite, renderer, 0.5, 0.5)
    assert same.decision.verdict == "hold" and "better on sums" in same.decision.reason
    assert len(same.candidate["sums"].tasks) == 60 > len(same.candidate["words"].tasks), "the guarded suite had passed"


def test_weights_that_change_under_a_trial_end_it(suite, renderer):
    class Published(Scripted):
        async def speak(self, view, sampling):
            self.version += 1
            return say("1") and await super().speak(view, sampling)

    live = Published(lambda view: say("1"), renderer, "live")
    suites = {"sums": suite, "words": replace(suite, name="words")}
    with pytest.raises(InputError, match="weights were published to a policy on trial"):
        asyncio.run(trial(GATE, suites, live, knows(renderer, 0.5), 5))


def test_what_cannot_be_judged_ends_a_trial_and_is_held(suite, renderer):
    async def judge(episode):
        if episode.task.id == "t7":
            raise ConnectionError("busy")
        return {"reward": 1.0}

    stuck = tried(replace(suite, scorer=judge), renderer, 0.5, 0.5, batch=60)
    assert stuck.decision.verdict == "hold" and "could not be scored" in stuck.decision.reason


def test_a_suite_that_is_missing_is_named(suite, renderer):
    with pytest.raises(InputError, match="suite words, which is not among"):
        asyncio.run(trial(GATE, {"sums": suite}, knows(renderer, 0.5), knows(renderer, 0.5)))
