"""How the results of a turn enter the view: what each call is shown, and what is left out where there is no room for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trivium.harness.base import Keep, Passage
from trivium.harness.calls import Outcome
from trivium.harness.context import Context
from trivium.policy import Speech
from trivium.policy.message import Message
from trivium.trace import Piece

_SHORT = 80
"""Letters to which an error is cut where there is no room for it."""

_SCRAP = 16
"""Letters of a text below which it is not worth showing."""


@dataclass(slots=True)
class Results:
    """The results of one turn. `freed` is the number of tokens that an edit of the same turn will take out of the view, and
    `advice` what the usage line says past the window's `soft`, and `spent` what stands behind it. A view that is `full` with
    all of them has to be summarized.

    Calls share the room that is left in their order: where it does not take all, the last call gives way first. Of a list of
    passages the last ones are left out, so that a later search may find them again. A text keeps its beginning and its end,
    and says how many tokens are left out between them.
    """

    context: Context
    outcomes: Sequence[Outcome]
    advice: str
    spent: str
    freed: int
    full: bool = False
    messages: list[Message] = field(default_factory=list)

    def fit(self) -> bool:
        """Fill `messages` with what there is room for: each call's result, at the end of the last one the usage line, and
        behind them what a full view's policy is asked for. False where not even the least fits."""
        context, window = self.context, self.context.window
        self._show()
        self.messages = self._results()
        self.full = window.compaction is not None and self._used() > window.compaction.at * window.budget
        while True:
            self.messages = self._results()
            before = context.length(self.messages)
            line = _usage_line(context, before - self.freed, self.advice, self.spent)
            total = before + len(context.renderer.encode(line))
            over = total - (window.budget - window.reply + self.freed)
            if over <= 0 or not self._give_way(over):
                break
        if total - self.freed >= window.budget:
            return False
        last = next(message for message in reversed(self.messages) if "pieces" in message)
        last["pieces"] = [*last["pieces"], Piece(line)]
        return True

    def _used(self) -> int:
        """Tokens of the view with all results, after the turn's edit."""
        return self.context.length(self.messages) - self.freed

    def _results(self) -> list[Message]:
        results = [{"role": "tool", "tool_call_id": o.call.id, "pieces": list(o.call.pieces)} for o in self.outcomes]
        request = self.context.window.compaction.request if self.full and self.context.window.compaction else ""
        return [*results, {"role": "user", "content": request}] if request else results

    def _show(self) -> None:
        """Give every passage its handle; one already in view, or twice in a turn, is shown once."""
        shown, plain = set(self.context.in_view().values()), self.context.renderer.plain
        self.context.new.clear()
        for outcome in self.outcomes:
            call, result = outcome.call, outcome.result
            if call.error:
                call.pieces = [self._error(call.error)]
            elif isinstance(result, Keep):
                call.pieces = [Piece(plain(f"{result.note}\n"))]
            elif isinstance(result, str):
                call.pieces = [Piece(plain(f"{result}\n"))]
            else:
                call.pieces = [self._piece(passage, shown) for passage in result if passage.source not in shown]
                call.pieces = call.pieces or [Piece("Nothing new.\n")]

    def _piece(self, passage: Passage, shown: set[str]) -> Piece:
        shown.add(passage.source)
        ref = self.context.handle(passage.source)
        return Piece(self.context.renderer.plain(f"{passage.text} {ref}\n"), ref, passage.source)

    def _error(self, error: str) -> Piece:
        return Piece(self.context.renderer.plain(f"Error: {error}\n"))

    def _give_way(self, over: int) -> bool:
        """Make the results shorter, by `over` tokens if possible; False when nothing is left to leave out."""
        calls = list(reversed(self.outcomes))
        return any(self._leave_out(each) or self._cut(each, over) for each in calls) or any(map(self._shorten, calls))

    def _leave_out(self, outcome: Outcome) -> bool:
        """Drop the last passage of a call."""
        call = outcome.call
        if not call.pieces or not call.pieces[-1].ref:
            return False
        self.context.forget(call.pieces[-1].source)
        call.pieces = call.pieces[:-1] or [Piece("No room for results.\n")]
        return True

    def _cut(self, outcome: Outcome, over: int) -> bool:
        """Cut a long text by `over` tokens; where that leaves nothing of it, the call has failed."""
        call, result, count = outcome.call, outcome.result, self._count
        if call.error or not isinstance(result, str) or len(call.pieces[0].text) <= 2 * _SHORT:
            return False
        whole = self.context.renderer.plain(result)
        if short := shortened(whole, count(call.pieces[0].text) - over - 1, count):
            call.pieces = [Piece(f"{short}\n")]
        else:
            outcome.fail(f"the result takes {count(whole)} tokens: no room for it", "arguments")
            call.pieces = [self._error(call.error)]
        return True

    def _shorten(self, outcome: Outcome) -> bool:
        """Cut a long error, or the long note of an edit, which is done however long its note."""
        call, result = outcome.call, outcome.result
        if len(call.pieces[0].text) <= 2 * _SHORT or not (call.error or isinstance(result, Keep)):
            return False
        if call.error:
            call.error = call.error[:_SHORT]
            call.pieces = [self._error(call.error)]
        elif isinstance(result, Keep):
            call.pieces = [Piece(self.context.renderer.plain(f"{result.note[:_SHORT]}\n"))]
        return True

    def _count(self, text: str) -> int:
        return len(self.context.renderer.encode(text))


def shortened(text: str, room: int, count: Callable[[str], int]) -> str:
    """`text` in at most `room` tokens, which `count` counts: where it is longer its beginning and its end, and between them how
    many tokens are left out; "" where the room takes next to nothing of it."""
    whole = count(text)
    if whole <= room:
        return text
    letters = len(text) * max(0, room) // whole
    while letters >= _SCRAP:
        head, tail = text[: letters - letters // 2], text[-(letters // 2) :]
        short = f"{head}\n[{whole - count(head) - count(tail):,} tokens left out]\n{tail}"
        if (excess := count(short) - room) <= 0:
            return short
        letters -= max(1, letters // 64, excess * len(text) // whole)
    return ""


def _usage_line(context: Context, before: int, advice: str, spent: str) -> str:
    """The usage line that counts itself: its number settles after one correction."""
    total, line = before, ""
    for _ in range(3):
        line = f"{context.window.usage(total, advice)} {spent}".rstrip()
        total = before + len(context.renderer.encode(line))
    return line


def no_summary(speech: Speech, summary: str, complete: bool) -> str:
    """Why a reply, and the summary in it, is none; "" for one that is."""
    if speech.calls:
        return "it called a tool"
    if not complete:
        return "it was cut off"
    return "" if summary else "it was empty"
