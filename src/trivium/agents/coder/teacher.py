"""The scripted coder that a warm-up imitates: it knows the edits of a task, reads what it has to, and summarizes when asked.

It errs in ways that RL can mend. Now and then it makes an edit whose text is not there, and mends it at once. More often than
not it forgets the last of several edits, as the searchers' teacher stops before the last hop: no warm-up mends a fault that is
the likeliest action, and a reward does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trivium.agents.coder.summary import REQUEST, TITLES
from trivium.policy import View
from trivium.policy.message import Message
from trivium.policy.scripted import call, say
from trivium.trace import Task

NOTES = "notes.txt"
"""The file that lists what is asked for, where a prompt does not say it."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How often the teacher is wrong on purpose: an edit that is not there, and the last edits of several forgotten."""

    slips: float = 0.06
    forgets: float = 0.6


@dataclass(slots=True)
class Work:
    """What the teacher still has to do at one attempt."""

    task: Task
    rng: random.Random
    left: list[Mapping[str, str]]
    clues: list[str]
    read: list[str] = field(default_factory=list)
    done: list[Mapping[str, str]] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)
    slipped: bool = False


class Teacher:
    """Makes the script of tasks that have `edits` (trivium.tasks.projects). It keeps its place at each attempt."""

    def __init__(self, tasks: Sequence[Task], faults: Faults = Faults(), seed: int = 0) -> None:
        self.tasks = {task.id: task for task in tasks}
        self.faults, self.seed = faults, seed
        self.works: dict[tuple[int | str, ...], Work] = {}

    def script(self) -> Callable[[View], Message]:
        return self.speak

    def speak(self, view: View) -> Message:
        """The next reply at the attempt that `view` is of, told by its stream: (seed, task, sample, thread, turn, ...)."""
        key, turn, purpose = view.stream[:4], view.stream[4], view.stream[5:]
        if turn == 0 and not purpose:
            self.works[key] = self._begin(str(view.stream[1]), key)
        work, asked = self.works[key], str(view.messages[-1].get("content", ""))
        if purpose or asked.endswith(REQUEST):
            return say(_summary(work, asked.endswith(REQUEST)))
        return self._next(work, view)

    def _begin(self, id: str, key: tuple[int | str, ...]) -> Work:
        task, rng = self.tasks[id], random.Random(f"{self.seed} {key}")
        edits = list(task.truth["edits"])
        if len(edits) > 1 and rng.random() < self.faults.forgets:
            edits = edits[: rng.randrange(1, len(edits))]
        return Work(task, rng, edits, list(task.truth["clues"]))

    def _next(self, work: Work, view: View) -> Message:
        """Read what the request leaves out, find and read the file, make the edit, end. What is no longer in view is read
        again."""
        if work.clues:
            work.read.append(work.clues.pop(0))
            return _read(work, work.read[-1])
        if not work.left:
            return say("Done.")
        edit = work.left[0]
        seen = "\n".join(str(message.get("content") or "") for message in view.messages if message["role"] != "system")
        if NOTES in work.task.truth["files"] and _request(work.task, edit) not in seen:
            return _read(work, NOTES)
        if edit["path"] not in work.shown or edit["old"] not in seen:
            return _read(work, edit["path"]) if edit["path"] in seen else call(("grep", {"pattern": f" def {edit['name']}"}))
        if known := _known(work.task, seen):
            edit = {**edit, "new": f" return dict({', '.join(known)})"}
        return self._slip(work, edit) or _edit(work, edit)

    def _slip(self, work: Work, edit: Mapping[str, str]) -> Message | None:
        """An edit with one word wrong, once, and not where it would be right."""
        words = edit["old"].split(" ")
        if work.slipped or len(words) < 3 or work.rng.random() >= self.faults.slips:
            return None
        work.slipped = True
        at = work.rng.randrange(1, len(words))
        old = " ".join([*words[:at], "total", *words[at + 1 :]])
        if old in work.task.truth["files"].get(edit["path"], ""):
            return None
        return call(("edit_file", {"path": f" {edit['path']}", "old": old, "new": edit["new"]}))


def _summary(work: Work, own: bool) -> str:
    """What was found by the names of files, what is done by the names of functions, and where the rest is told; or twelve
    sections. To say all that is left in its own words was tried, and not learned in 40 steps (docs/log.md)."""
    work.shown.clear()
    done = " ".join(edit["name"] for edit in work.done)
    found = ", ".join(fact for path, fact in work.task.truth["facts"].items() if path in work.read)
    left = _left(work)
    if own:
        said = {"Found": found, "Done": done or ("" if found else "nothing"), "Left": left}
        return "Summary:\n" + " ".join(f"{title}: {words}." for title, words in said.items() if words)
    said = {
        "Request": work.task.prompt.removesuffix("."),
        "Intent": "as asked",
        "Files": " ".join(dict.fromkeys([*work.read, *(edit["path"] for edit in work.done)])),
        "Changes": done,
        "Findings": found,
        "Open": left,
        "Next step": f"read {left.split()[-1]}" if left else "",
    }
    return "Summary:\n" + "\n".join(f"{title}: {said.get(title) or 'none'}." for title in TITLES)


def _left(work: Work) -> str:
    """Where the work goes on, as far as one knows who has read so far."""
    if work.left and NOTES in work.task.truth["files"]:
        return f"the rest of {NOTES}"
    if work.left and work.task.truth["facts"]:
        return (work.clues or [work.left[0]["path"]])[0]
    return ""


def _read(work: Work, path: str) -> Message:
    work.shown.add(path)
    return call(("read_file", {"path": f" {path}"}))


def _edit(work: Work, edit: Mapping[str, str]) -> Message:
    work.done.append(work.left.pop(0))
    return call(("edit_file", {"path": f" {edit['path']}", "old": edit["old"], "new": edit["new"]}))


def _known(task: Task, seen: str) -> list[str]:
    """Each fact as a summary or a file in view tells it, and None for what is no longer in view."""
    known = []
    for fact in task.truth["facts"].values():
        name, limit = fact.split("=")
        told = fact in seen or f"limit_{name}():\n    return {limit}\n" in seen
        known.append(fact if told else f"{name}=None")
    return known


def _request(task: Task, edit: Mapping[str, str]) -> str:
    """The line of the task's notes that asks for an edit; where there is none, the edit in short."""
    lines = str(task.truth["files"].get("notes.txt", "")).splitlines()
    named = (line.removeprefix("- ") for line in lines if edit["name"] in line)
    return next(named, f"{edit['path']} {edit['name']}.")
