"""The small values a harness and its tools speak in."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from trivium.errors import InputError
from trivium.harness.compaction import Compaction, compaction_of
from trivium.policy import Policy
from trivium.trace import Call, Fault, Sampling, Task, Thread

if TYPE_CHECKING:
    from trivium.harness.loop import Harness

_USAGE = re.compile(r"\[Token usage: (\d[\d,]{0,20})/(\d[\d,]{0,20})\]")  # longer numbers are some document's


class ToolError(Exception):
    """A call that failed, told to the policy in one sentence. It costs the policy a turn and is data on the trace. `fault` says
    whose doing it was: the policy's own, unless the tool says otherwise."""

    def __init__(self, message: str = "", fault: Fault = "arguments") -> None:
        super().__init__(message)
        self.fault: Fault = fault


@runtime_checkable
class Tool(Protocol):
    """What a policy can call. `@tool` makes one of a function; any other object with these serves as well."""

    @property
    def name(self) -> str:
        """What a policy calls it by."""
        ...

    @property
    def seconds(self) -> float | None:
        """How long one call may take; None for the harness' `Limits.tool_seconds`."""
        ...

    @property
    def frees(self) -> bool:
        """Whether it frees room in the view. Such a tool may be called when the window is nearly full, and the usage line
        advises it by the first word of its name, which is a verb, as in prune_chunks."""
        ...

    def spec(self) -> dict[str, Any]:
        """The tool as the OpenAI API describes it to a model: `{"type": "function", "function": {"name": ..., ...}}`."""
        ...

    async def __call__(self, scene: Scene, arguments: dict[str, Any]) -> Result:
        """The result of one call. Raises ToolError for what the policy should be told in one sentence."""
        ...


@dataclass(frozen=True, slots=True)
class Window:
    """How much context a thread may hold, in tokens.

    Past `soft` (a share of `budget`) the usage line advises to free room or to answer. Past `hard` every tool that frees no
    room is refused, so that the policy can still conclude. Context-1's report puts soft at half of the window and hard between
    that and all of it; 0.9 is our choice, and so are the `reply` tokens that are kept free for the next reply. With `summarize`
    the policy is asked for a summary where the view would be fuller than that share, and goes on from it, as Composer 2 does;
    other ways to go on are in harness/compaction.py.
    Raises InputError for numbers that contradict each other.
    """

    budget: int
    soft: float = 0.5
    hard: float = 0.9
    reply: int = 64
    summarize: float | Compaction | None = None

    def __post_init__(self) -> None:
        if not 0 < self.soft <= self.hard <= 1:
            raise InputError(f"a window needs 0 < soft <= hard <= 1, not soft {self.soft} and hard {self.hard}")
        if self.compaction and not 0 < self.compaction.at <= self.hard:  # past which no tool would fill it further
            raise InputError(f"summarize is a share of the window, above 0 and up to hard {self.hard}, not {self.summarize}")
        if not 0 < self.reply < self.budget:
            raise InputError(f"a window of {self.budget} tokens cannot keep {self.reply} free for a reply")

    @property
    def compaction(self) -> Compaction | None:
        """How a thread goes on when its view is fuller than a share; None: it does not."""
        return compaction_of(self.summarize)

    def check(self, prompt: int) -> None:
        """InputError when a prompt of so many tokens leaves no room for a reply."""
        if prompt + self.reply > self.budget:
            raise InputError(
                f"the prompt takes {prompt} tokens and a reply {self.reply}, the window holds "
                f"{self.budget}: give a larger budget or a shorter question"
            )

    def usage(self, used: int, advice: str) -> str:
        """The line that ends every turn's results, as Context-1 has it, and past `soft` with `advice` behind it."""
        line = f"[Token usage: {used:,}/{self.budget:,}]"
        return f"{line} {advice}".rstrip() if used > self.soft * self.budget else line


def read_usage(text: str) -> list[tuple[int, int]]:
    """Every usage line in a text, as (tokens used, tokens of the window)."""
    return [(int(used.replace(",", "")), int(budget.replace(",", ""))) for used, budget in _USAGE.findall(text)]


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends an episode or a call by force: turns of a thread, seconds of one tool call, calls of one turn, how deep
    assignments go (1: a sub-agent assigns nothing further), and the critical steps of an episode (`trace.critical_steps`).

    The agent's `depth` holds for all below it. With `critical` the policy is told after each turn how many steps are spent, a
    sub-agent gets what is left but for the answer, and who has spent all of them without an answer is stopped.

    A tool may have seconds of its own. Only one that awaits can be stopped: a plain function runs to its end, on the event
    loop, so make a slow one async.
    """

    turns: int = 64
    tool_seconds: float = 30.0
    calls: int = 8
    depth: int = field(default=4, repr=False)  # in no repr: older stores know neither
    critical: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if min(self.turns, self.calls) < 1 or not self.tool_seconds > 0:
            raise InputError(f"limits are at least a turn, a call and more than 0 seconds, not {self}")
        if self.depth < 1 or (self.critical is not None and self.critical < 1):
            raise InputError(f"assignments go 1 deep or deeper and an episode has a step, not {self.depth} and {self.critical}")


@dataclass(frozen=True, slots=True)
class Passage:
    """One prunable piece of a tool's result. The harness gives its `source` a short handle, the same for the whole thread."""

    source: str
    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not isinstance(self.text, str):
            raise InputError(f"a Passage's source and text are text, not {self.source!r} and {type(self.text).__name__}")
        if self.source.encode(errors="replace").decode() != self.source:  # a file's name may be
            raise InputError(f"a Passage's source is {self.source!r}, which has half a character in it: no store can keep it")


@dataclass(frozen=True, slots=True)
class Keep:
    """An edit: of the chunks now in view, keep those with these handles. Applied after all results of the turn."""

    refs: tuple[str, ...]
    note: str


Result = str | list[Passage] | Keep


@dataclass(frozen=True, slots=True)
class Subagent:
    """Somebody a policy may hand an assignment to: who speaks, how it lives, how its tokens are drawn (None: as those of the
    request that assigned, so that a greedy agent is greedy as a whole), and the seconds of its whole life. `report` makes the
    one message that comes back of a life that came to its end, a text, or passages that get handles of who assigned (None: its
    answer). Frozen unless a run names its policy."""

    policy: Policy
    harness: Harness
    sampling: Sampling | None = None
    seconds: float = 600.0
    report: Callable[[Thread], str | list[Passage]] | None = None

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise InputError(f"a sub-agent needs more than 0 seconds, not {self.seconds}")


@dataclass(frozen=True, slots=True)
class Scene:
    """What a tool may know of the thread that calls it, and the one thing it may start.

    `seen` holds the sources of every passage shown so far, pruned or not: pass it to a search as its exclusion filter.
    `handles` maps the handles now in view to their sources. `room` is the number of tokens results may still take, all calls of
    the turn together. `calls` are the thread's calls before this one, those of the same turn among them. `place` is what the
    harness' Place opened for this episode, for a sub-agent that of whoever assigned it unless its own harness has one; None
    without any.
    """

    task: Task
    seen: Set[str]
    handles: dict[str, str]
    room: int
    count: Callable[[str], int]
    spawn: Callable[[Subagent, str], Awaitable[str | list[Passage]]]
    place: Any = None
    calls: Sequence[Call] = ()
