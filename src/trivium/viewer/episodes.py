"""Shows a person an episode: what the agent asked, saw, dropped and returned, read from the trace alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trivium.errors import InputError
from trivium.trace import Call, Cut, Episode, Prune, Restart, Task, Thread
from trivium.viewer import reading
from trivium.viewer.lanes import lanes
from trivium.viewer.panels import Labels
from trivium.viewer.reading import Decode, Turn

STAR = "★"
NARROW = 150
"""On a terminal of fewer columns episodes stand one below the other."""
BAR = 16
LONGEST = 240
"""Letters shown of an argument, an answer or an error."""

Scores = Mapping[str, float]
_SPECIAL = re.compile(r"<\|[^|<>]*\|>|</?think>")
GOLD, DIM, BAD = "bold yellow", "dim", "bold red"


def episode_panel(
    episode: Episode,
    decode: Decode | None = None,
    scores: Scores | None = None,
    title: str = "",
    labels: Labels = Labels(),
    texts: Mapping[str, str] | None = None,
) -> Panel:
    """One episode in a frame: question, turns, answer, what became of the gold documents, scores.

    Gold documents, of which `labels` knows, have a star. With `decode` (tokens -> text, `Renderer.decode`) the window's
    size, thoughts and summaries are shown too. `scores` stand at the bottom. `texts` are those of documents that the episode
    never saw, by their ids.
    """
    page = _Page(episode, decode, labels, frozenset(labels.gold(episode.task)), texts or {})
    parts = [page.question(), *page.thread(episode.agent), *_timeline(episode), *page.fates()]
    parts += _scores(scores or {}, labels.maxima)
    name = title or episode.id
    return Panel(Group(*parts), title=Text(name, "bold"), subtitle=_subtitle(episode), title_align="left")


def side_by_side(
    episodes: Sequence[tuple[str, Episode]],
    width: int,
    decode: Decode | None = None,
    scores: Mapping[str, Scores] | None = None,
    labels: Labels = Labels(),
    texts: Mapping[str, Mapping[str, str]] | None = None,
) -> RenderableType:
    """One to three episodes, each with its title, in columns; `scores` and `texts` (as `episode_panel` has them) by episode id.

    On a terminal of less than 150 columns they stand one below the other. InputError for none or more than three.
    """
    if not 1 <= len(episodes) <= 3:
        raise InputError(f"one to three episodes stand side by side, not {len(episodes)}")
    scores, texts = scores or {}, texts or {}
    panels = [
        episode_panel(episode, decode, scores.get(episode.id), title, labels, texts.get(episode.id))
        for title, episode in episodes
    ]
    if width < NARROW:
        return Group(*panels)
    grid = Table.grid(expand=True)
    for _ in panels:
        grid.add_column(ratio=1)
    grid.add_row(*panels)
    return grid


def legend(labels: Labels, tasks: Iterable[Task]) -> Text:
    """The meaning of the signs in these tasks' episodes, to be shown below the last one; empty where there are none."""
    signs = [f"{STAR} gold: a document that the task asks for, or a passage of it"] if any(map(labels.gold, tasks)) else []
    signs += [f"the best {name} there is: {value:.3g}" for name, value in labels.maxima.items()]
    return Text("; ".join(signs), DIM)


@dataclass(frozen=True, slots=True)
class _Page:
    """An episode on one page. Its methods show what needs the truth or the whole trace."""

    episode: Episode
    decode: Decode | None
    labels: Labels
    gold: frozenset[str]
    texts: Mapping[str, str]

    def question(self) -> RenderableType:
        text = Text(clean(self.episode.task.prompt), "bold")
        if answer := self.labels.answer(self.episode.task):
            text.append(f"\ntruth: {short(answer)}", "not bold yellow")
        if op := reading.branch(self.episode):
            text.append(f"\nBranch of {op.parent} at {op.snapshot}", "not bold magenta")
        return text

    def thread(self, thread: Thread) -> Iterator[RenderableType]:
        """A thread's turns, its answer, and why it stopped."""
        turns = reading.turns(self.episode, thread)
        window = reading.budget(thread, self.decode)
        full = window or max((turn.peak for turn in turns), default=1)
        for turn in turns:
            yield _heading(turn, full, window)
            yield from self.thought(turn)
            for call in turn.calls:
                yield Padding(Group(*self.call(call)), (0, 0, 0, 2))
            for cut in turn.cuts:
                yield Padding(self.cut(thread, turn, cut), (0, 0, 0, 2))
        yield from self.answer(thread)

    def thought(self, turn: Turn) -> Iterator[RenderableType]:
        """The text of a turn beside its calls."""
        if self.decode and turn.calls and (text := short(_plain(self.decode(turn.reply)))):
            yield Padding(Text(text, "italic"), (0, 0, 0, 2))

    def call(self, call: Call) -> Iterator[RenderableType]:
        """A call, the sub-agents that it spawned, and its results."""
        yield Text.assemble((clean(call.name) or "(unreadable)", "bold cyan"), " ", arguments(call.arguments))
        for child in reading.children(self.episode, call):
            title = Text(f"Spawn {child.policy} ({child.id})")
            yield Panel(Group(*self.thread(child)), border_style="magenta", title=title, title_align="left")
        if call.error:
            yield Text(f"✗ {short(call.error)}", BAD)
        else:
            prefix = "Join: " if reading.children(self.episode, call) else ""
            for piece in call.pieces:
                if not piece.ref:
                    yield Text.assemble((prefix, "magenta"), clean(piece.text))
            yield self.results(call)

    def results(self, call: Call) -> Table:
        """One passage a line, behind its handle. A gold one is shown as a whole, any other as far as the line goes."""
        pieces = [piece for piece in call.pieces if piece.ref]
        grid = _lines(piece.ref for piece in pieces)
        for piece in pieces:
            gold = self.labels.document(piece.source, self.episode.task) in self.gold
            text = clean(piece.shown)
            grid.add_row(self.handle(piece.ref, gold), Text(text) if gold else _one_line(text))
        return grid

    def handle(self, ref: str, gold: bool) -> Text:
        return Text(f"{STAR} {ref}", GOLD) if gold else Text(ref, "blue")

    def cut(self, thread: Thread, turn: Turn, cut: Cut) -> Text:
        """What an op did to the view. Gold that it dropped is red."""
        if isinstance(cut, Prune):
            documents = self.labels.documents(thread, self.episode.task)
            text = Text("Prune", "bold magenta").append(" dropped", "not bold")
            for ref in sorted(cut.chunks, key=_number):
                gold = documents.get(ref) in self.gold
                text.append(f" {STAR} {ref}" if gold else f" {ref}", BAD if gold else "not bold blue")
            return text
        if isinstance(cut, Restart):
            return Text.assemble(("Restart", "bold magenta"), f" ({clean(cut.reason)})")
        summary = f": {short(_plain(self.decode(turn.summary)))}" if self.decode else ""
        return Text.assemble(("Summarize", "bold magenta"), f", {len(turn.summary)} tokens{summary}")

    def answer(self, thread: Thread) -> Iterator[RenderableType]:
        """The answer with what it cites, and why the thread stopped if it did not finish."""
        texts, documents = reading.texts(thread), self.labels.documents(thread, self.episode.task)
        if thread.answer:
            yield Text.assemble((f"{clean(thread.policy)} answers: ", "bold green"), short(thread.answer))
        grid = _lines(self.labels.citations(thread))
        for ref in self.labels.citations(thread):
            if ref in texts:
                gold = documents[ref] in self.gold
                grid.add_row(self.handle(ref, gold), _one_line(clean(texts[ref]), "" if gold else DIM))
            else:
                grid.add_row(Text(ref, BAD), Text("never shown", BAD))
        if grid.row_count:
            yield Padding(grid, (0, 0, 0, 2))
        if thread.stop is None or thread.stop.reason != "finished":
            why = [thread.stop.reason, short(thread.stop.detail)] if thread.stop else ["not ended"]
            yield Text(f"stopped: {', '.join(filter(None, why))}", BAD)

    def fates(self) -> Iterator[RenderableType]:
        """What became of each gold document: returned, pruned, or only seen by the agent or a sub-agent."""
        agent, task = self.episode.agent, self.episode.task
        documents = self.labels.documents(agent, task)
        others = {id for thread in self.episode.threads[1:] for id in self.labels.documents(thread, task).values()}
        returned = {documents[ref] for ref in self.labels.citations(agent) if ref in documents}
        cuts = [op for op in self.episode.ops if isinstance(op, Prune) and op.before.thread == agent.id]
        pruned = {documents[ref] for op in cuts for ref in op.chunks if ref in documents}
        fates = {
            ("returned", "green"): returned,
            ("pruned, not returned", BAD): pruned,
            ("seen, not returned", "yellow"): set(documents.values()),
            ("seen by a sub-agent only", "yellow"): others,
        }
        if self.gold:
            yield _rule("gold documents")
        for id in self.labels.gold(task):
            fate = next((fate for fate, ids in fates.items() if id in ids), ("never seen", "red"))
            yield Text.assemble((f"{STAR} ", GOLD), f"{clean(id)}  ", fate)
            if id in self.texts:
                yield Padding(Text(short(self.texts[id]), DIM), (0, 0, 0, 2))


def _lines(refs: Iterable[str]) -> Table:
    """An empty grid: a column of handles, with room for a star, and one of their passages."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True, min_width=2 + max(map(len, refs), default=0))
    grid.add_column(ratio=1)
    return grid


def _one_line(text: str, style: str = DIM) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _heading(turn: Turn, full: int, window: int | None) -> Text:
    """The turn's number, and how full its view was when it ended: green up to half, yellow up to nine tenths, else red.

    Where the window is not known the longest context stands for it, and the colour says nothing.
    """
    text = Text(f"turn {turn.number + 1} ", "bold")
    if not turn.peak:
        return text.append("taken over from the parent", "not bold magenta")
    share = turn.used / full
    colour = "cyan" if not window else "green" if share <= 0.5 else "yellow" if share <= 0.9 else "red"
    filled = min(BAR, round(BAR * share))
    text.append("█" * filled, f"not bold {colour}").append("░" * (BAR - filled), "not bold bright_black")
    text.append(f" {turn.used:,}/{window:,}" if window else f" {turn.used:,} tokens", "not bold")
    return text.append(f" (was {turn.peak:,})", "not bold dim") if turn.peak > turn.used else text


def _timeline(episode: Episode) -> Iterator[RenderableType]:
    """The threads of an episode over its critical steps, a box a step; none where nobody was assigned anything."""
    if len(episode.threads) == 1:
        return
    rows = lanes(episode)
    yield _rule(f"{rows[0].stop} critical steps, {sum(lane.size for lane in rows)} in all")
    grid = Table.grid(padding=(0, 2))
    for lane in rows:
        boxes = [" "] * lane.stop
        for bar in lane.bars:
            boxes[bar.start : bar.start + bar.size] = "■" * bar.size
        name = Text(f"{'  ' * lane.depth}{clean(lane.policy)} {lane.thread}", DIM)
        grid.add_row(name, Text("".join(boxes), "bold cyan" if lane.critical else "blue"))
    yield grid


def _subtitle(episode: Episode) -> Text:
    """The policy and its versions, the number of turns, the reason to stop, and the task."""
    thread, turns = episode.agent, reading.turns(episode, episode.agent)
    versions = sorted({run.version for segment in thread.segments for run in segment.versions})
    ends = "–".join(str(version) for version in dict.fromkeys((*versions[:1], *versions[-1:])))
    name = f"{thread.policy} v{ends}" if versions else thread.policy
    end = thread.stop.reason if thread.stop else "not ended"
    return Text(f"{name}, {len(turns)} turns, {end}, task {clean(episode.task.id)}", DIM)


def _scores(scores: Scores, maxima: Mapping[str, float]) -> Iterator[RenderableType]:
    """The reward first and in bold; behind it its parts and all other numbers, in their own order."""
    if not scores:
        return
    yield _rule("scores")
    words = []
    for name, value in sorted(scores.items(), key=lambda score: score[0] != "reward"):
        number = "–" if value != value else f"{value:.3g} of {maxima[name]:.3g}" if name in maxima else f"{value:.3g}"
        words.append(Text(f"{name} {number}", "bold" if name == "reward" else ""))
    yield Columns(words, padding=(0, 2, 0, 0))


def _rule(title: str) -> Text:
    return Text(f"── {title} ──", DIM)


def arguments(arguments: Mapping[str, object]) -> Text:
    """A lone text as it is; several arguments, and a list, with their names. Long ones are cut."""
    values = [short(_value(value)) for value in arguments.values()]
    if len(values) == 1 and isinstance(*arguments.values(), str):
        return Text(values[0])
    return Text(", ".join(f"{clean(name)}={value}" for name, value in zip(arguments, values, strict=True)))


def _value(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return f"[{', '.join(item.strip() for item in value)}]"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number(ref: str) -> tuple[int, str]:
    """A key that sorts handles by their numbers: #9 before #10."""
    digits = ref.lstrip("#")
    return (int(digits) if digits.isdecimal() else 0, ref)


def _plain(text: str) -> str:
    """Sampled text without the template's own tokens, up to its first call."""
    return _SPECIAL.sub(" ", text.partition("<tool_call>")[0])


def short(text: str) -> str:
    """The text as `clean` has it, cut to LONGEST letters."""
    line = clean(text)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def clean(text: str) -> str:
    """The text on one line, without the control characters by which a policy's words could drive the terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in " ".join(text.split()))
