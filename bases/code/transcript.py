"""Transcripts of a scripted coder at work on generated projects, as the harness renders them, with the source of each copy.

The scripted coder reads, edits and ends, one call a turn. It errs: it now and then gives a text that is not there and mends the
call, and stops before the last of several edits. The calls are those of `agents/coder`, to the letter.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from trivium.harness import Window
from trivium.trace import Task

SYSTEM = (
    "Change the code as asked. Tools: read_file(path, start, end), edit_file(path, old, new), write_file(path, text), "
    "list_files(), grep(pattern), search_code(query), run(command), todo(add, done). Say Done. at the end."
)
SUMMARIZE = "Summarize: what is done, what is left, where. You go on from this summary alone."
WINDOW = Window(1536)
LETTERS_PER_TOKEN = 3.2
"""Roughly, for the usage lines and for when to summarize."""
CONTEXT, OWN, SLIP = 0.04, 1.0, 0.2
"""Loss weights: of what the coder reads, of what it says, and of what it says wrongly before it mends it."""
LISTED = 6
"""Changes that a summary says in full."""
_WORDS = re.compile(r"\w+|\s+|[^\w\s]+")


@dataclass(frozen=True, slots=True)
class Copy:
    """`size` letters at `to` of a transcript are those at `source`."""

    to: int
    source: int
    size: int


@dataclass(frozen=True, slots=True)
class Shown:
    """A line of a file in view, letters `start` to `stop`: is it `asked` to be changed, does its function hold such a line."""

    start: int
    stop: int
    asked: bool
    holds: bool


@dataclass(slots=True)
class Transcript:
    """Texts with loss weights, each tokenised on its own, in order; copies and lines by the letters of all texts together."""

    texts: list[tuple[str, float]] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    lines: list[Shown] = field(default_factory=list)
    whole: str = ""

    def add(self, text: str, weight: float = CONTEXT) -> int:
        """Append, and return where it begins."""
        start = len(self.whole)
        self.texts.append((text, weight))
        self.whole += text
        return start


class Turn:
    """One reply as it is put together: words of its own, and words copied from the transcript before it or from itself."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript, self.text, self.copies = transcript, "", []
        self.start = len(transcript.whole)

    def own(self, text: str) -> Turn:
        self.text += text
        return self

    def copy(self, text: str, source: int = -1) -> Turn:
        """`text` as it stands at `source`, or where it stood last; words of its own where it stands nowhere."""
        if source < 0:
            source = (self.transcript.whole + self.text).rfind(text)
        if source >= 0:
            self.copies.append(Copy(self.start + len(self.text), source, len(text)))
        self.text += text
        return self

    def changed(self, old: str, old_at: int, new: str, region: tuple[int, int]) -> Turn:
        """`new`: what it shares with `old` (which stands at `old_at`) from there, and the rest from the letters of `region`."""
        before, after = _WORDS.findall(old), _WORDS.findall(new)
        for tag, i, _, j, k in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag == "equal":
                self.copy(_escaped("".join(after[j:k])), old_at + len("".join(before[:i])))
            elif tag != "delete":
                self._from(after[j:k], region)
        return self

    def _from(self, words: Sequence[str], region: tuple[int, int]) -> None:
        """Words copied in the longest stretches that the region holds."""
        text, at = self.transcript.whole[region[0] : region[1]], 0
        while at < len(words):
            for stop in range(len(words), at, -1):
                stretch = "".join(words[at:stop])
                if "\n" not in stretch and not stretch.isspace() and (found := _whole_word(text, stretch)) >= 0:
                    self.copy(stretch, region[0] + found)
                    break
            else:
                stop = at + 1
                self.own(_escaped(words[at]))
            at = stop

    def end(self, weight: float = OWN) -> None:
        self.transcript.add(f"{self.text}<|im_end|>", weight)
        self.transcript.copies += self.copies


def _escaped(text: str) -> str:
    """As JSON has it between quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _whole_word(text: str, words: str) -> int:
    found = re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text)
    return found.start() if found else -1


class Coder:
    """Writes the transcript of one task. `files` are as the scripted coder has left them so far."""

    def __init__(self, rng: random.Random, task: Task, system: bool = True, errs: float = 0.06, forgets: float = 0.25) -> None:
        self.rng, self.task, self.errs = rng, task, errs
        self.files: dict[str, str] = dict(task.truth["files"])
        self.edits = list(task.truth["edits"])
        if len(self.edits) > 1 and rng.random() < forgets:
            self.edits = self.edits[: rng.randrange(1, len(self.edits))]
        self.transcript = Transcript()
        self.shown: dict[str, tuple[int, str]] = {}
        """path -> where its text stands in the transcript, and that text"""
        head = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" if system else ""
        start = self.transcript.add(f"{head}<|im_start|>user\n{task.prompt}<|im_end|>\n")
        self.asked = (start + len(head), len(self.transcript.whole))
        """where the words stand that ask for the change"""

    def whole(self) -> Transcript:
        """The task from its beginning to its end."""
        self.speak()
        self.clues()
        for edit in self.edits:
            self.change(edit)
        self.turn().own("Done.").end()
        return self.transcript

    def speak(self) -> None:
        self.transcript.add("<|im_start|>assistant\n")

    def turn(self) -> Turn:
        return Turn(self.transcript)

    def clues(self) -> None:
        """Read the files that say what the request leaves out."""
        for path in self.task.truth["clues"]:
            if path not in self.shown:
                self.read(path)

    def change(self, edit: Mapping[str, str]) -> None:
        """Find the file, read it if it is not in view, and make one edit."""
        path = edit["path"]
        if path not in self.transcript.whole and path not in self.shown:
            self.grep(edit["name"])
        if path not in self.shown:
            self.read(path)
        if self.rng.random() < self.errs:
            self.mistake(edit)
        self.edit(edit)

    def grep(self, name: str) -> None:
        call = self.turn().own('<tool_call>\n{"name": "grep", "arguments": {"pattern": " def ').copy(name)
        call.own('"}}\n</tool_call>').end()
        hits = [
            f"- {path}:{number}: {line.strip()}\n"
            for path, text in self.files.items()
            for number, line in enumerate(text.split("\n"), 1)
            if f"def {name}" in line
        ]
        self.respond("".join(hits))

    def read(self, path: str) -> None:
        call = self.turn().own('<tool_call>\n{"name": "read_file", "arguments": {"path": " ').copy(path)
        call.own('"}}\n</tool_call>').end()
        text = self.files[path]
        start = self.respond(text + ("\n" if self.rng.random() < 0.5 else ""))
        self.shown[path] = (start, text)
        self._mark_lines(path, start, text)
        if path in self.task.truth["clues"]:
            self.asked = (start, start + len(text))

    def _mark_lines(self, path: str, start: int, text: str) -> None:
        wanted = [edit for edit in self.edits if edit["path"] == path]
        names = {edit["name"] for edit in wanted}
        holds, at = False, start
        for line in text.split("\n"):
            if line.startswith("def "):
                holds = line[4:].partition("(")[0] in names
            asked = bool(line.strip()) and any(f" {line.strip()}" == edit["old"] or line == edit["old"] for edit in wanted)
            self.transcript.lines.append(Shown(at, at + len(line), asked and (holds or not line.startswith(" ")), holds))
            at += len(line) + 1

    def edit(self, edit: Mapping[str, str]) -> None:
        path, old, new = edit["path"], edit["old"], edit["new"]
        place, text = self.shown[path]
        call = self.turn().own('<tool_call>\n{"name": "edit_file", "arguments": {"path": " ').copy(path)
        call.own('", "old": "')
        at = len(self.transcript.whole) + len(call.text)
        stands = text.find(old)
        call.copy(old, place + stands) if stands >= 0 else call.copy(old)
        call.own('", "new": "').changed(old, at, new, self._region(edit)).own('"}}\n</tool_call>').end()
        number = self.files[path][: self.files[path].index(old)].count("\n") + 1
        self.files[path] = self.files[path].replace(old, new)
        self.respond(f"Edited {path} at line {number}.\n")

    def _region(self, edit: Mapping[str, str]) -> tuple[int, int]:
        """Where the words stand that ask for this edit: of several lines or sentences those that name its function."""
        text = self.transcript.whole[slice(*self.asked)]
        if self.task.truth["kind"] in ("notes", "test") and (found := _whole_word(text, edit["name"])) >= 0:
            found = text.rfind(edit["name"]) if self.task.truth["kind"] == "test" else found
            start = text.rfind("\n", 0, found) + 1
            stop = text.find("\n", found)
            stop = text.find("\n", stop + 1) if self.task.truth["kind"] == "test" else stop
            return self.asked[0] + start, self.asked[0] + (stop if stop >= 0 else len(text))
        if self.task.truth["kind"] == "comment" and (found := text.find(f"#{edit['new']}")) >= 0:
            return self.asked[0] + found, self.asked[0] + found + len(edit["new"]) + 1
        return self.asked

    def mistake(self, edit: Mapping[str, str]) -> None:
        """An edit whose text is not there, which comes back as an error."""
        path, words = edit["path"], edit["old"].split(" ")
        at = self.rng.randrange(1, len(words))
        wrong = " ".join([*words[:at], self.rng.choice(("total", "price", "return", "+")), *words[at + 1 :]])
        if wrong in self.files[path]:
            return
        call = self.turn().own('<tool_call>\n{"name": "edit_file", "arguments": {"path": " ').copy(path)
        call.own(f'", "old": "{_escaped(wrong)}", "new": "{_escaped(edit["new"])}"}}}}\n</tool_call>').end(SLIP)
        self.respond(f"Error: {path}: the text to replace is not there.\n")

    def respond(self, text: str, then: str = "") -> int:
        """A result, up to where the coder speaks again; returns where `text` begins."""
        self.transcript.add("\n<|im_start|>user\n<tool_response>\n")
        start = self.transcript.add(text)
        used = int(len(self.transcript.whole) / LETTERS_PER_TOKEN)
        self.transcript.add(f"{WINDOW.usage(used, '')}\n</tool_response><|im_end|>\n{then}<|im_start|>assistant\n")
        return start


def segments(rng: random.Random, task: Task, share: float = 0.6) -> list[Transcript]:
    """A long task as the coder meets it: a transcript for each window, all but the last ending in a summary of its own."""
    coder = Coder(rng, task, forgets=0.1)
    coder.speak()
    done: list[Mapping[str, str]] = []
    written: list[Transcript] = []
    coder.clues()
    for number, edit in enumerate(coder.edits):
        coder.change(edit)
        done.append(edit)
        full = len(coder.transcript.whole) / LETTERS_PER_TOKEN > share * WINDOW.budget
        if full and number + 1 < len(coder.edits):
            written.append(coder.transcript)
            _go_on(coder, done, coder.edits[number + 1 :], len(written))
    coder.turn().own("Done.").end()
    return [*written, coder.transcript]


def _go_on(coder: Coder, done: Sequence[Mapping[str, str]], left: Sequence[Mapping[str, str]], count: int) -> None:
    """The request to summarize, the summary, and the beginning of the next window."""
    text, weight = coder.transcript.texts.pop()
    coder.transcript.whole = coder.transcript.whole.removesuffix(text)
    ask = f"<|im_start|>user\n{SUMMARIZE}<|im_end|>\n<|im_start|>assistant\n"
    coder.transcript.add(text.removesuffix("<|im_start|>assistant\n") + ask, weight)
    wanted = _requests(coder, left)
    turn = coder.turn().own("Summary:\nDone:")
    for edit in done:
        turn.own(" ").copy(edit["name"])
    turn.own(". Left:")
    for request in wanted[:LISTED]:
        turn.own(" ").copy(request)
    if len(wanted) > LISTED:
        turn.own(" Then notes.txt.")
    turn.end()
    said = turn.text.removeprefix("Summary:\n")
    fresh = Transcript()
    system = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{coder.task.prompt}<|im_end|>\n<|im_start|>user\n"
    touched = ", ".join(dict.fromkeys(edit["path"] for edit in done))
    fresh.add(system)
    start = fresh.add(f"Your summary so far:\n{said}\n")
    fresh.add(f"Files touched: {touched}\nSummaries so far: {count}<|im_end|>\n<|im_start|>assistant\n")
    coder.transcript, coder.shown = fresh, {}
    coder.asked = (start, start + len(said) + 21)
    if len(wanted) <= LISTED:
        return
    coder.read("notes.txt")


def _requests(coder: Coder, left: Sequence[Mapping[str, str]]) -> list[str]:
    """The lines of the notes that ask for the edits that are left."""
    lines = coder.task.truth["files"].get("notes.txt", "").split("\n")
    return [next(line for line in lines if edit["name"] in line).removeprefix("- ") for edit in left]
