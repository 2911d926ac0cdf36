"""Generated projects: hidden tests tell before from after, edits lead there, held-out ones have words of their own."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from trivium.errors import InputError
from trivium.tasks import projects
from trivium.tasks.names import split_of
from trivium.tasks.projects import GRADES
from trivium.tasks.projects.changes import Edit, apply

KINDS = set("value operator name fill comment test two add parameter rename constant notes gather".split())


def outcomes(folder: Path, files: dict[str, str], task) -> dict[str, bool]:
    """Test id -> whether it passes, with `files` as the project."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    modules = {path.removesuffix(".py") for path in files if path.endswith(".py") and "/" not in path}
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return {id: _passes(task, id) for id in task.truth["expected"]}
    finally:
        sys.path.remove(str(folder))
        for module in modules:
            sys.modules.pop(module, None)


def _passes(task, id: str) -> bool:
    path, _, name = id.partition("::")
    space: dict = {}
    try:
        exec(task.truth["tests"][path], space)
        space[name]()
        return True
    except (AssertionError, ImportError, AttributeError, TypeError, NotImplementedError, NameError):
        return False


@pytest.fixture(scope="module")
def made():
    return [task for grade in GRADES for task in projects(25 if grade < 4 else 3, (grade,), seed=7)]


def test_hidden_tests_fail_before_and_pass_after(made, tmp_path):
    for number, task in enumerate(made):
        before, after = task.truth["files"], task.truth["files"] | task.truth["change"]
        failed = {id for id, passes in outcomes(tmp_path / f"{number}-before", before, task).items() if not passes}
        assert failed and failed == set(task.truth["fixed"]), task.prompt
        assert all(outcomes(tmp_path / f"{number}-after", after, task).values()), task.prompt


def test_edits_lead_from_the_files_to_the_change(made):
    for task in made:
        edits = [Edit(**edit) for edit in task.truth["edits"]]
        assert apply(task.truth["files"], edits) == task.truth["files"] | task.truth["change"]
        for edit in edits:
            assert edit.old != edit.new and (edit.old.startswith(" ") or not re.match(r"\s", edit.old))


def test_every_kind_is_drawn_and_the_first_grade_tells_all(made):
    assert {task.truth["kind"] for task in made} == KINDS
    for task in made:
        (edit, *more) = task.truth["edits"]
        if task.truth["grade"] == 0:
            assert not more and edit["path"] in task.prompt and edit["name"] in task.prompt
        if task.truth["kind"] == "notes":
            assert len(task.truth["edits"]) >= 5 and task.truth["clues"] == ["notes.txt"]


def test_a_clue_holds_what_the_prompt_leaves_out(made):
    for task in made:
        if task.truth["kind"] in ("test", "notes"):
            (clue,) = task.truth["clues"]
            assert all(edit["name"] in task.truth["files"][clue] for edit in task.truth["edits"])
        if task.truth["kind"] == "gather":
            (edit,), files, clues = task.truth["edits"], task.truth["files"], task.truth["clues"]
            assert clues[0] in task.prompt and clues == list(task.truth["facts"]) and 3 <= len(clues) <= 5
            for path, after, fact in zip(clues, [*clues[1:], edit["path"]], task.truth["facts"].values(), strict=True):
                name, number = fact.split("=")
                top = f"import {after.removesuffix('.py')}\n\n\n"
                assert files[path].startswith(f"{top}def limit_{name}():\n    return {number}\n") and fact in edit["new"]
        if task.truth["kind"] == "comment":
            (edit,) = task.truth["edits"]
            assert f"#{edit['new']}" in task.truth["files"][edit["path"]]


def test_held_out_projects_share_no_invented_word_with_others():
    def invented(split) -> set[str]:
        texts = [text for task in projects(120, (0, 1, 2, 3), split=split) for text in task.truth["files"].values()]
        return {name.partition("_")[2] for text in texts for name in re.findall(r"def (?!test_)(\w+)\(", text)}

    train, heldout = invented("train"), invented("heldout")
    assert len(train) > 150 and not train & heldout
    assert {split_of(word) for word in heldout} == {"heldout"}


def test_equal_arguments_give_equal_tasks_and_no_two_are_alike():
    tasks = projects(60, (0, 1), seed=3)
    assert tasks == projects(60, (0, 1), seed=3) != projects(60, (0, 1), seed=4)
    assert len({task.prompt + str(task.truth["files"]) for task in tasks}) == 60 == len({task.id for task in tasks})


def test_a_grade_that_there_is_not_is_an_error():
    with pytest.raises(InputError, match="grades 0 to 6"):
        projects(3, (7,))
