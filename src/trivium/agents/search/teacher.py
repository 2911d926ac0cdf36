"""A scripted searcher that knows the truth, and is wrong on purpose.

A policy warmed up on a perfect script has nothing left for RL to learn; one warmed up on a script that errs now and
then repairs it for free by taking its most likely action (docs/log.md). So this teacher errs **in its most likely
action**: more often than not it stops before the last hop, and returns lines it should not. Only a reward mends that.
`Imperfection.none()` is the same script without faults: the ceiling that trained policies are compared with.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from trivium.agents.search.tools import QUOTES
from trivium.corpus import Corpus
from trivium.corpus.words import STOP_WORDS, words
from trivium.errors import InputError
from trivium.harness import read_usage
from trivium.policy.base import View
from trivium.policy.message import Message
from trivium.policy.scripted import call, say
from trivium.tasks.cloze import plain
from trivium.tasks.proof import mentions
from trivium.tasks.relations import BY_KEY
from trivium.tasks.world import query_for
from trivium.trace.episode import Task

_LINE = re.compile(r"^(?P<text>.*\S) (?P<handle>#\d+)$", re.MULTILINE)
_HARD = 0.8  # it stops searching before any harness refuses to
_TURNS = 16


@dataclass(frozen=True, slots=True)
class Imperfection:
    """How often the teacher errs. Each is a chance: the first two per episode, the others per turn that could.

    forget        of stopping before the last hop of a task that has several
    over_include  of returning one or two lines that support nothing; up to four where queries quote
    prune         of pruning once more than half of the window is used; 0 for a harness that has no such tool
    two_calls     of searching in two ways at once where one search would do; where queries quote, of searching once more
    sloppy_query  of searching with the question's own words, or a keyword without a name, before searching well
    """

    forget: float = 0.6
    over_include: float = 0.7
    prune: float = 0.8
    two_calls: float = 0.15
    sloppy_query: float = 0.15

    @classmethod
    def none(cls) -> Imperfection:
        """The perfect script."""
        return cls(forget=0.0, over_include=0.0, prune=1.0, two_calls=0.0, sloppy_query=0.0)


@dataclass(frozen=True, slots=True)
class _Call:
    """A tool call, equal to another that asks the same whatever the white space."""

    name: str
    text: str

    def spoken(self) -> tuple[str, dict[str, Any]]:
        """Words in JSON strings begin with a space, as in running text."""
        return self.name, {"pattern" if self.name == "grep_corpus" else "query": f" {self.text}"}


@dataclass(frozen=True, slots=True)
class Teacher:
    """What the script says next, given a conversation and the task's truth; equal arguments get equal words."""

    imperfection: Imperfection = Imperfection()
    seed: int = 0

    def next(self, task: Task, messages: Sequence[Message], sample: int = 0) -> Message:
        """The next assistant message: calls, or the handles to return. `sample` numbers attempts, which differ.

        Raises InputError for a task without a `chain` (see `World.tasks`): this teacher cannot find out, it knows.
        """
        if not task.truth.get("chain"):
            raise InputError(f"task {task.id} has no chain of links for the scripted teacher to follow")
        return _Turn(self, task, messages, sample).decide()

    def script(self, tasks: Iterable[Task]):
        """The teacher as a script for `policy.Scripted`: a function of the view, which names its task and sample."""
        by_id = {task.id: task for task in tasks}

        def speak(view: View) -> Message:
            _, task, sample, *_ = view.stream
            return self.next(by_id[str(task)], view.messages, int(sample))

        return speak


class _Turn:
    """One turn: what the view shows, what was tried, and what follows from both."""

    def __init__(self, teacher: Teacher, task: Task, messages: Sequence[Message], sample: int) -> None:
        self.how, self.task, self.chain = teacher.imperfection, task, task.truth["chain"]
        replies = [message for message in messages if message["role"] == "assistant"]
        shown = "\n".join(str(m["content"]) for m in messages if m["role"] in ("tool", "user"))
        self.number = len(replies)
        self.tried = [_heard(wanted["function"]) for message in replies for wanted in message.get("tool_calls") or ()]
        self.just_pruned = bool(self.tried) and self.tried[-1].name == "prune_chunks"
        self.lines = {match["handle"]: match["text"] for match in _LINE.finditer(shown)}
        self.shown = shown.lower()
        self.quotes = any(message["role"] == "system" and QUOTES in str(message["content"]) for message in messages)
        self.used = _share(shown)
        whole = random.Random(f"teacher {teacher.seed} {task.id} {sample}")
        self.forgets = whole.random() < self.how.forget
        self.extra = whole.choice((1, 2, 3, 4) if self.quotes else (1, 2)) if whole.random() < self.how.over_include else 0
        self.now = random.Random(f"teacher {teacher.seed} {task.id} {sample} {self.number}")
        self.goal = self._goal()
        self.found: dict[int, str] = {}
        for index in range(len(self.chain)):
            if handle := self._handle(index):
                self.found[index] = handle

    def decide(self) -> Message:
        keep = [self.found[i] for i in sorted(self.found)] or list(self.lines)[-1:]
        prunable = self.how.prune > 0 and len(keep) < len(self.lines) and not self.just_pruned
        if prunable and self.used > 0.5 and not self._done() and (self.used > _HARD or self._chance(self.how.prune)):
            return call(("prune_chunks", {"keep": [f" {handle}" for handle in keep]}))
        calls = [] if self.used > _HARD or self.number >= _TURNS else self._searches()
        return call(*(wanted.spoken() for wanted in calls)) if calls else say(self._answer())

    def _goal(self) -> list[int]:
        """The links this episode will look for: all, or all but the last where it forgets."""
        everything = list(range(len(self.chain)))
        return everything[:-1] if self.forgets and len(everything) > 1 else everything

    def _handle(self, index: int) -> str:
        """The handle of the line that states a link: the only one that names both its ends.

        A link whose ends are one (a real question's, where only the page is known) is any passage of that page: by its
        title alone it could be a namesake's. Of two pages that read alike each link has its own.
        """
        free = ((handle, text) for handle, text in self.lines.items() if handle not in self.found.values())
        return next((handle for handle, text in free if _states(text, self.chain[index])), "")

    def _done(self) -> bool:
        return all(index in self.found for index in self.goal)

    def _searches(self) -> list[_Call]:
        """One call for each link that can be looked for now; none when all is found or nothing is left to try."""
        ready = [i for i in self.goal if i not in self.found and self.chain[i]["after"] in (-1, *self.found)]
        calls = list(dict.fromkeys(wanted for i in ready if (wanted := self._search(i))))
        if len(calls) == 1 and not _page(self.chain[ready[0]]) and self._chance(self.how.two_calls):
            second = _Call("search_corpus", self.chain[ready[0]]["subject"])
            calls += [second] if second not in calls else []
        further = self.quotes and not ready and self._chance(self.how.two_calls)
        return [wanted] if further and (wanted := self._search(0)) else calls

    def _search(self, index: int) -> _Call | None:
        """The next untried way to find a link: by keyword, by other words for it, by name alone.

        A search by name made again pages on, since what was seen is not shown again.
        """
        link = self.chain[index]
        if _page(link):
            return self._search_page(link)
        good, broad = _Call("search_corpus", query_for(link).strip()), _Call("search_corpus", link["subject"])
        sloppy = _Call("search_corpus", _first_words(self.task.prompt) if link["after"] < 0 else link["keyword"])
        if sloppy.text and not {good, sloppy} & set(self.tried) and self._chance(self.how.sloppy_query):
            return sloppy
        other = _Call("search_corpus", f"{link['subject']} {_other_words(link)}".strip())
        ways = [good, other, broad, _Call("grep_corpus", re.escape(link["subject"])), broad, broad]
        for tried in self.tried:
            if tried in ways:
                ways.remove(tried)
        return ways[0] if ways else None

    def _search_page(self, link: dict[str, Any]) -> _Call | None:
        """The next way to a page of which nothing is known but its title: the question, the title if it stands somewhere in
        view (a learner cannot copy what it does not see), the question once more, which pages on."""
        question, title = _Call("search_corpus", " ".join(self.task.prompt.rstrip("?").split())), plain(link["subject"])
        ways = [question, *([_Call("search_corpus", title)] if title.lower() in self.shown else []), question]
        if self.quotes:
            ways = self._quoting()
        for tried in self.tried:
            if tried in ways:
                ways.remove(tried)
        return ways[0] if ways else None

    def _quoting(self) -> list[_Call]:
        """Where a query may quote: the question, the question with each page found, with the first two passages in view."""
        quoted = dict.fromkeys([*sorted(self.found.values(), key=list(self.lines).index), *list(self.lines)[:2]])
        return [_Call("search_corpus", query) for query in ("#0", *(f"#0 {handle}" for handle in quoted))]

    def _answer(self) -> str:
        """The found handles in hop order, then, where it over-includes, the first others in view."""
        cited = [self.found[i] for i in self.goal if i in self.found]
        others = [handle for handle in self.lines if handle not in self.found.values()]
        cited += others[: self.extra if cited else 1]
        return "".join(f" {handle}" for handle in cited) or " none"

    def _chance(self, share: float) -> bool:
        return self.now.random() < share


def with_chain(tasks: list[Task], corpus: Corpus) -> list[Task]:
    """Real questions with what the scripted teacher needs: a link for each gold document, and how its passages read."""
    return [Task(task.id, task.prompt, {**task.truth, "chain": _chain(task, corpus)}) for task in tasks]


def _chain(task: Task, corpus: Corpus) -> list[dict[str, Any]]:
    links, wanted = [_link(doc, corpus) for doc in task.truth["gold"]], task.prompt.lower()
    return sorted(links, key=lambda link: link["subject"].lower() not in wanted)  # named in the question: first


def _link(doc: str, corpus: Corpus) -> dict[str, Any]:
    """A page, its title and what tells its passages from others; nothing need come before it (-1)."""
    chunks = corpus.read(doc)
    title, lines = " ".join(chunks[0].title.split()), [_fingerprint(chunk.line) for chunk in chunks]
    return {"subject": title, "keyword": "", "object": title, "doc": doc, "lines": lines, "after": -1}


def _states(text: str, link: dict[str, Any]) -> bool:
    if _page(link):
        return _fingerprint(text) in link["lines"]
    return mentions(text, link["subject"]) and mentions(text, link["object"])


def _fingerprint(line: str) -> str:
    """What tells a passage from others: a task goes wherever its episodes go, and pages are long. White space is
    left out."""
    return blake3("".join(line.split()).encode()).hexdigest(length=8)


def _page(link: dict[str, Any]) -> bool:
    """Whether only a page is known, and not what it must state: a real question's link."""
    return link["subject"] == link["object"]


def _heard(function: dict[str, Any]) -> _Call:
    """A past call as a conversation has it: its text stripped, whatever its argument is called."""
    arguments = function["arguments"]
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    values = [value for value in arguments.values() if isinstance(value, str)]
    return _Call(function["name"], values[0].strip() if values else "")


def _share(shown: str) -> float:
    """The share of the window used, by the last usage line; 0 before the first."""
    *_, (used, budget) = [(0, 1), *read_usage(shown)]
    return used / budget


def _other_words(link: dict[str, Any]) -> str:
    """Up to three words by which documents state a relation without its keyword; none for one no world knows."""
    loose = " ".join(BY_KEY[link["relation"]].loose).format(s="", o="") if link.get("relation") in BY_KEY else ""
    return " ".join(list(dict.fromkeys(word for word in words(loose) if word not in STOP_WORDS))[:3])


def _first_words(prompt: str) -> str:
    return " ".join(prompt.rstrip("?").split()[:8])
