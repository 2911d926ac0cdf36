"""What becomes of a view that fills up: the policy summarizes it and goes on from that, or its oldest turns are cut.

Window(2_000, summarize=0.6)                                       the short request, nothing kept beside the summary
Window(2_000, summarize=Summary(0.6, state=kept))                  Composer 2: the harness' own books stand behind it
Window(2_000, summarize=Summary(0.6, request=SECTIONS))            a baseline: a long summary in fixed sections
Window(2_000, summarize=Oldest(0.6, keep=0.3))                     a baseline: nobody is asked, the oldest turns go
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from trivium.errors import InputError
from trivium.trace import Thread

REQUEST = "Summarize what you know, what is missing and what you will do next. You will go on from this summary alone."

SECTIONS = """\
Write a complete summary of this conversation, from which the work can be taken up by somebody who has read nothing of it. \
Use exactly these sections, each with its title, and leave none out:
1. Request: what the user asked for, in the user's own words.
2. Intent: what it is for, and what a good result would be.
3. Constraints: what must not be changed or used.
4. Environment: where the work is done, which commands were found to work there, and how.
5. Files: every file that was read or changed, and what each is for.
6. Code: the passages that matter, quoted exactly.
7. Changes: every change that was made, in order, and why.
8. Errors: everything that failed, with its message, and what mended it.
9. Findings: what was learned on the way and is not in the files.
10. Open: what is not done yet, with the reason.
11. Current work: what was being done when this summary was asked for.
12. Next step: the very next action, and how its result will be checked."""
"""The request of a long prompted summary (what such prompts ask for; the words are ours)."""

MARK = "Summary:"
"""A line that begins so parts a reply to the request: what stands before it is scratch, sampled and learned from as all else,
and is not carried over."""

State = Callable[[Thread], Sequence[str]]
"""Lines that stand behind each summary, made of what is on record of a thread: facts, which a policy cannot get wrong."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Past `at`, a share of the window, the harness puts `request` behind the turn's results, and the thread goes on from its
    opening and what the policy replies (Composer 2's report, 4.1). With `state` its lines stand behind the summary, and
    how many summaries there were."""

    at: float
    request: str = REQUEST
    state: State | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.request.strip():
            raise InputError("a summary needs a request: to cut without asking, use Oldest")

    def text(self, reply: str, thread: Thread, number: int) -> str:
        """The message that the next context begins with, for summary number `number` of a thread."""
        kept = [*self.state(thread), f"Summaries so far: {number}"] if self.state else []
        return "\n".join([f"Your summary so far:\n{reply}", *kept])


@dataclass(frozen=True, slots=True)
class Oldest:
    """Past `at`, a share of the window, the thread goes on from its opening and as many of its last turns as fit into the
    share `keep`, the last one in any case. Nobody is asked."""

    at: float
    keep: float = 0.5
    request: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if not 0 < self.keep <= self.at:
            raise InputError(f"what is kept is a share of the window, above 0 and up to at {self.at}, not {self.keep}")


Compaction = Summary | Oldest


def compaction_of(given: float | Compaction | None) -> Compaction | None:
    """A share alone is that of a Summary."""
    return Summary(given) if isinstance(given, float | int) else given


def summary_in(reply: str) -> str:
    """The summary of a reply to the request, without the scratch before it."""
    lines = reply.splitlines()
    marks = [number for number, line in enumerate(lines) if line.startswith(MARK)]
    if not marks:
        return reply
    return "\n".join([lines[marks[-1]].removeprefix(MARK), *lines[marks[-1] + 1 :]]).strip()
