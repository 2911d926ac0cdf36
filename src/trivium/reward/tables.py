"""What an answer that is a table is worth: item F1, row F1 and success, as WideSearch has them (arXiv:2508.07999).

A table is text, a row a line, cells between bars, the first cell the row's key:

    Brennix Holt | Mira Tolen | Varby
    Zolex Lorbank | ? | Danholm

The right one is `truth["rows"]`, key -> its other cells, and `truth["match"]`, for each column how its cells are compared
("exact" where it says nothing). Keys and exact cells are compared by their words. A cell that says nothing (empty, -, ?) was
not said, and costs no precision.

Where cells are numbered, `truth["cells"]` gives the row and column of each, and an answer may be `2 | Varby`, a cell a line.
A cell may as well cite the passage that states it, by its handle: `truth["documents"]` says which document states what, and a
handle stands for what its document states. An answer without bars that only cites (`#2 #5`) fills the cells that these passages
state (`truth["links"]`); a passage that states none is a wrong cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from urllib.parse import urlsplit

from trivium.corpus import document_of
from trivium.corpus.words import words
from trivium.errors import InputError
from trivium.trace import Episode, Thread

TOLERANCE = 0.01
"""By how much of the right number a number may be off; the report gives none."""
_UNSAID = {"", "-", "?"}
_HANDLE = re.compile(r"#\d+")
_DATES = ("%Y-%m-%d", "%d %B %Y", "%B %d %Y", "%d %b %Y", "%b %d %Y", "%d.%m.%Y", "%m/%d/%Y")

Rows = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Tally:
    """How much was said, was wanted, and is right."""

    said: int
    wanted: int
    right: int

    @property
    def harmonic_mean(self) -> float:
        return 2 * self.right / (self.said + self.wanted) if self.said + self.wanted else 0.0


def table_scores(answer: str, rows: Mapping[str, Sequence[str]], match: Sequence[str] = ()) -> dict[str, float]:
    """`item_f1` over cells, `row_f1` over rows of which all cells are right, and `success` where the table is right as a whole,
    with nothing beside it."""
    said, wanted = read_table(answer), {key_of(key): tuple(cells) for key, cells in rows.items()}
    right = {key: _right(said.get(key, ()), cells, match) for key, cells in wanted.items()}
    filled = {key: sum(cell not in _UNSAID for cell in cells) for key, cells in said.items()}
    items = Tally(sum(filled.values()), sum(map(len, wanted.values())), sum(map(sum, right.values())))
    whole = sum(len(hits) > 0 and all(hits) for hits in right.values())
    row = Tally(sum(count > 0 for count in filled.values()), len(wanted), whole)
    exact = items.said == items.wanted == items.right and whole == len(wanted)
    return {"item_f1": items.harmonic_mean, "row_f1": row.harmonic_mean, "success": float(exact)}


def read_table(text: str) -> Rows:
    """The rows of a table in words, by their keys; of two with one key the first. A head above a rule of dashes is no row."""
    lines = [line.strip().strip("|") for line in text.splitlines() if "|" in line]
    rules = [number for number, line in enumerate(lines) if "-" in line and not line.strip(" :|-")]
    body = [line for number, line in enumerate(lines) if number not in rules and number + 1 not in rules]
    rows: Rows = {}
    for line in body:
        key, *cells = (cell.strip() for cell in line.split("|"))
        rows.setdefault(key_of(key), tuple(cells))
    return rows


def key_of(name: str) -> str:
    """A name by its words alone: what links a row to the right one."""
    return " ".join(words(name))


def _right(said: Sequence[str], wanted: Sequence[str], match: Sequence[str]) -> list[bool]:
    kinds = [*match, *["exact"] * (len(wanted) - len(match))]
    cells = [*said, *[""] * (len(wanted) - len(said))]
    return [cell not in _UNSAID and same(cell, right, kind) for cell, right, kind in zip(cells, wanted, kinds, strict=False)]


def same(said: str, right: str, kind: str = "exact") -> bool:
    """Whether two cells of a column of that kind are equal. InputError for a kind that there is not."""
    if kind not in KINDS:
        raise InputError(f"a column is compared as {', '.join(KINDS)}, not as {kind!r}")
    return KINDS[kind](said, right)


def _number(said: str, right: str) -> bool:
    try:
        one, other = (float(text.replace(",", "").replace(" ", "")) for text in (said, right))
    except ValueError:
        return key_of(said) == key_of(right)
    return abs(one - other) <= TOLERANCE * abs(other)


def _date(said: str, right: str) -> bool:
    one, other = _read_date(said), _read_date(right)
    return one == other if one and other else key_of(said) == key_of(right)


def _read_date(text: str) -> date | None:
    for form in _DATES:
        try:
            return datetime.strptime(text.replace(",", " ").replace("  ", " ").strip(), form).date()
        except ValueError:
            continue
    return None


def _url(said: str, right: str) -> bool:
    def place(text: str) -> tuple[str, str, str]:
        parts = urlsplit(text if "//" in text else f"//{text}")
        return parts.netloc.lower().removeprefix("www."), parts.path.rstrip("/"), parts.query

    try:
        return place(said.strip()) == place(right.strip())
    except ValueError:  # of half an address
        return key_of(said) == key_of(right)


KINDS: dict[str, Callable[[str, str], bool]] = {
    "exact": lambda said, right: key_of(said) == key_of(right),
    "number": _number,
    "date": _date,
    "url": _url,
}
"""How the cells of a column are compared."""


def resolved(thread: Thread, truth: Mapping[str, Any]) -> str:
    """The answer of a thread with what each cited document states in place of its handle; a handle that was never shown, or
    whose document states nothing that is asked for, stays as it is."""
    cites = {piece.ref: document_of(piece.source) for piece in thread.passages}
    documents = truth.get("documents", {})
    answer = thread.answer if "|" in thread.answer or not documents else _cell_by_cell(thread.answer, cites, truth)
    return _HANDLE.sub(lambda handle: documents.get(cites.get(handle[0], ""), handle[0]), answer)


def _cell_by_cell(answer: str, cites: Mapping[str, str], truth: Mapping[str, Any]) -> str:
    """Each passage that an answer cites as a line of the cell that its document states, or of a cell that there is not."""
    numbers = {link["doc"]: number for number, link in enumerate(truth["links"], 1)}
    cited = dict.fromkeys(_HANDLE.findall(answer))
    return "\n".join(f"{numbers.get(cites.get(handle, ''), f'none by {handle}')} | {handle}" for handle in cited)


def by_rows(answer: str, cells: Mapping[str, Sequence[Any]]) -> str:
    """An answer cell by cell as a table row by row; as it is where `cells` (number -> row and column) has no numbers."""
    if not cells:
        return answer
    rows: dict[str, list[str]] = {}
    for number, said in read_table(answer).items():
        key, column = cells.get(number, (f"no cell {number}", 0))
        row = rows.setdefault(key, [""] * (1 + max((at for name, at in cells.values() if name == key), default=0)))
        row[column] = said[0] if said else ""
    return "\n".join(" | ".join([key, *row]) for key, row in rows.items())


async def table_score(episode: Episode) -> dict[str, float]:
    """The scores of an episode whose answer is a table; `reward` is item F1, 0 where it did not finish."""
    truth = episode.task.truth
    answer = by_rows(resolved(episode.agent, truth), truth.get("cells", {}))
    scores = table_scores(answer, truth["rows"], truth.get("match", ()))
    finished = bool(episode.agent.stop) and episode.agent.stop.reason == "finished"
    scores = scores if finished else dict.fromkeys(scores, 0.0)
    return {"reward": scores["item_f1"], **scores}
