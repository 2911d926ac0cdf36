"""What a recipe's class promises whoever writes one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import trivium as tv
from trivium.errors import InputError
from trivium.loops import Run
from trivium.policy.scripted import say
from trivium.recipe.base import Suite
from trivium.recipe.find import remember
from trivium.recipe.measured import Measured
from trivium.recipe.parts import Parts


@dataclass(frozen=True)
class Plain(tv.Recipe):
    """Says hello."""

    workers: int = 1
    groups: int = 2
    steps: int = 1
    words: int = 0
    """words of the conversation before each question"""

    def tasks(self, split: str) -> list[tv.Task]:
        said = [{"role": "user", "content": "hello " * self.words}, {"role": "assistant", "content": "Yes?"}]
        return [tv.Task(f"{split}/{n}", f"Say {n}", messages=said if self.words else []) for n in range(4)]

    def harness(self) -> tv.Harness:
        return tv.Harness([], tv.Window(120, reply=20), limits=tv.Limits(turns=2), specs=False)

    def scorer(self, step: int) -> tv.Scorer:
        async def score(episode: tv.Episode) -> dict[str, float]:
            return {"reward": float(bool(episode.agent.answer))}

        return score


@dataclass(frozen=True)
class Told(Plain):
    """The same, and somebody knows what to say."""

    def ceiling(self, tasks) -> tv.Policy:
        return tv.Scripted(lambda view: say(" hello"), self.renderer, "expert")


@pytest.mark.parametrize("field, value", [("sft_steps", 9), ("sft_lr", 0.1), ("warmup", 3)])
def test_without_lessons_an_option_of_the_warm_up_is_refused(field, value):
    Parts(Plain()).check()
    flag = field.replace("_", "-")
    with pytest.raises(InputError, match=f"--{flag} would change nothing: Plain has no lessons"):
        Parts(replace(Plain(), **{field: value})).check()


def test_a_conversation_counts_where_it_is_asked_whether_tasks_fit_the_window():
    Parts(Plain(words=20)).check()
    with pytest.raises(InputError, match="the window holds 120"):
        Parts(Plain(words=200)).check()


def test_another_conversation_is_another_task_to_go_on_with():
    digests = [
        Parts(recipe).inputs(Parts(recipe).network())["questions"] for recipe in (Plain(), Plain(words=1), Plain(words=2))
    ]
    assert len(set(digests)) == 3


@pytest.mark.parametrize("cls, measured", [(Plain, False), (Told, True)])
def test_a_ceiling_is_compared_where_the_agent_knows_one(tmp_path, cls, measured):
    run = Run.begin(tmp_path / "run", cls().fields())
    remember(run, cls)
    (tmp_path / "run" / "summary.json").write_text("{}")
    (tmp_path / "run" / "model").symlink_to(Path(cls().base()))
    names = [speaker.name for speaker in Measured(str(tmp_path / "run"), Suite()).speakers()]
    assert ("expert" in names) == measured and names[:2] == ["base", "base_greedy"]
    run.close()
