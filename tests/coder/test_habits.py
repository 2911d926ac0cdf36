"""A coder's books behind its summaries, its teacher, and the hints for its turns that went wrong."""

from __future__ import annotations

import asyncio

from tests.coder.house import TASK, FakeDesks, attempt, harness, left, shown
from trivium.agents.coder.hints import advice, hint
from trivium.agents.coder.reward import summaries
from trivium.agents.coder.summary import REQUEST, compaction
from trivium.agents.coder.teacher import Faults, Teacher
from trivium.agents.coder.todo import kept
from trivium.harness import Window
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.tasks.projects import projects
from trivium.trace import Call, Restart, Summarize
from trivium.train import Feedback

READ = call(("read_file", {"path": "cart.py"}))
EDIT = call(("edit_file", {"path": " cart.py", "old": " return price - 2", "new": " return price + 2"}))
TODO = call(("todo", {"add": ["mend tax", "tell"]}), ("todo", {"done": [1]}))


def test_open_to_dos_and_touched_files_stand_behind_a_summary(renderer):
    script = [TODO, EDIT, READ, say("Thinking.\nSummary:\nDone: tax."), say("Done.")]
    window = Window(1300, soft=0.9, hard=1.0, reply=200, summarize=compaction("own"))
    episode = attempt(renderer, *script, window=window)
    assert episode.agent.stop.reason == "finished" and len(episode.agent.segments) == 2
    second = episode.agent.segments[1]
    begun = renderer.decode(second.tokens[: second.carried])
    assert (
        "Your summary so far:\nDone: tax.\nOpen to-dos: 2 tell\nFiles touched: cart.py\nSummaries so far: 1<|im_end|>" in begun
    )
    assert renderer.decode(episode.agent.segments[0].tokens).count(REQUEST) == 1
    said = episode.agent.segments[0].sampled()[-1]
    assert renderer.decode(episode.agent.segments[0].tokens[said.start : said.stop]).startswith("Thinking.\nSummary:")
    assert summaries(episode) == [said.stop - said.start], "scratch and summary, as they were sampled"


def test_books_of_nothing_are_empty(renderer):
    assert kept(attempt(renderer, say("Done.")).agent) == []


def lived(renderer, task, faults=Faults(0.0, 0.0), way="own", budget: int = 5000):
    desks = FakeDesks()
    window = Window(budget, soft=0.9, hard=1.0, reply=600, summarize=compaction(way))
    teacher = Scripted(Teacher([task], faults).speak, renderer, name="teacher")
    episode = asyncio.run(harness(desks, window).run(task, teacher))
    return episode, left(desks, episode)


def test_the_teacher_makes_the_true_change_of_every_grade(renderer):
    for task in projects(12, grades=(0, 1, 2, 3), seed=5):
        episode, files = lived(renderer, task)
        assert episode.agent.stop.reason == "finished" and not any(made.error for made in episode.agent.calls)
        assert files == {**task.truth["files"], **task.truth["change"]}, task.truth["kind"]


def test_the_teacher_goes_on_from_its_own_summaries(renderer):
    (task,) = projects(1, grades=(4,), seed=3)
    episode, files = lived(renderer, task)
    assert sum(isinstance(op, Summarize) for op in episode.ops) >= 1
    assert files == {**task.truth["files"], **task.truth["change"]}


def test_the_teacher_lives_with_its_oldest_turns_cut(renderer):
    (task,) = projects(1, grades=(4,), seed=3)
    episode, files = lived(renderer, task, way="cut")
    assert any(isinstance(op, Restart) for op in episode.ops) and episode.agent.stop.reason == "finished"
    assert files == {**task.truth["files"], **task.truth["change"]}


def test_the_teacher_errs_on_purpose_and_mends_what_it_said(renderer):
    (task,) = projects(1, grades=(0,), seed=5)
    episode, files = lived(renderer, task, Faults(slips=1.0, forgets=0.0))
    errors = [made.error for made in episode.agent.calls if made.error]
    assert len(errors) == 1 and "is not there" in errors[0]
    assert files == {**task.truth["files"], **task.truth["change"]}


def test_hints_are_for_the_turns_that_went_wrong(renderer):
    wrong = call(("edit_file", {"path": "cart.py", "old": "zzz", "new": "y"}))
    episode = attempt(renderer, READ, wrong, call(("todo", {"add": ["tell"]})), say("Done."))
    turns = Feedback(hint, renderer).of(episode, {"agent"})
    taught = [renderer.decode(turn.teacher) for turn in turns]
    assert len(turns) == 2
    assert "Copy old letter by letter from the file as it was read.<|im_end|>" in taught[0]
    assert "To-dos are still open: tell.<|im_end|>" in taught[1]


def test_a_thread_that_ends_at_a_refused_call_is_hinted_where_it_went_wrong(renderer):
    """The second call in place of a summary ends it and is heard by nobody: the turns before keep their own hints."""
    wrong = call(("edit_file", {"path": "cart.py", "old": "return prize - 2", "new": "y"}))
    window = Window(1300, soft=0.9, hard=1.0, reply=200, summarize=compaction("own"))
    episode = attempt(renderer, READ, wrong, *[READ] * 9, window=window)
    assert episode.agent.stop.reason == "summary" and "place of a summary" in episode.agent.calls[-1].error
    turns = [renderer.decode(turn.teacher) for turn in Feedback(hint, renderer).of(episode, {"agent"})]
    assert 'Write "old": "return price - 2".<|im_end|>' in turns[0] and turns[0].count("tool_call>") == 4 and len(turns) == 2


def test_each_kind_of_error_has_its_hint():
    errors = {
        "cart.py: the text to replace is there 2 times; give more of it.": "line before it",
        "there is no file car.py; list_files shows them.": "Use a path",
        "the new text is the old one: nothing would change.": "Write in new what the request asks for",
        "there is no tool 'raed'; there are read_file": "Write the call as one JSON object",
        "edit_file: Object missing required field `old`": "Write the call as one JSON object",
        "something else": "Avoid this: something else",
    }
    for error, words in errors.items():
        assert words in advice(Call("0", 0, "edit_file", {}, error=error, fault="arguments"), "", "")


def test_a_hint_quotes_what_was_copied_wrong(renderer):
    wrong = call(("edit_file", {"path": "cart.py", "old": "return prize - 2", "new": "return 1"}))
    nowhere = call(("read_file", {"path": " crat.py"}))
    episode = attempt(renderer, READ, wrong, wrong, nowhere, say("Done."))  # the second time has none: it was told
    taught = [renderer.decode(turn.teacher) for turn in Feedback(hint, renderer).of(episode, {"agent"})]
    assert 'Write "old": "return price - 2".<|im_end|>' in taught[0]
    assert 'Write "path": " cart.py".<|im_end|>' in taught[1] and len(taught) == 2


def test_what_was_nobodys_doing_has_no_hint(renderer):
    def bug(files):
        raise RuntimeError("bug")

    episode = attempt(renderer, call(("run", {"command": "x"})), say("Done."), desks=FakeDesks({"x": bug}))
    assert "bug" in shown(episode)[0] and Feedback(hint, renderer).of(episode, {"agent"}) == []


def test_the_request_is_one_sentence_or_two():
    assert len(REQUEST) < 100 and compaction("prompted").request.count("\n") >= 12 and compaction("cut").request == ""
    assert TASK.truth["expected"]
