"""What the nano base is trained on: drills, search trajectories over invented facts, and Python's own documentation.

An `Example` is tokens with a loss weight each, and marks. A mark sits on the last digit of a result line and says whether
the line states what the last query asked, and whom or what it leads to; marks train two probes that are thrown away
afterwards (see `train.py`), and teach a line's handle to sum up its line.
"""

from __future__ import annotations

import pydoc_data.topics
import random
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trivium.harness import Window
from trivium.tasks.names import KINDS, Split
from trivium.tasks.names import name as any_name
from trivium.tasks.world import World, query_for

SYSTEM = (
    "Find the documents that answer the question. Tools: search_corpus(query), grep_corpus(pattern), "
    "read_document(doc_id), prune_chunks(keep). Finish with the handles of the documents, best first."
)
CONTEXT_WEIGHT = 0.1
TEXT_WEIGHT = 0.5


@dataclass(frozen=True, slots=True)
class Line:
    """One result: its text without handle, whether it states the fact asked for, and the object of its own fact."""

    text: str
    gold: bool
    object: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text with one loss weight.

    With `line`, it ends in the handle of that result line, which is number `handles[0]`. What the agent says may cite
    `handles`, in the order of the text, or be one search for `name`, the object of line `after` (0: of the question).
    """

    text: str
    weight: float = CONTEXT_WEIGHT
    line: Line | None = None
    handles: tuple[int, ...] = ()
    after: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """At token `at`, the end of a result line: is it `gold`, and the first token of its object (-1 for a year)."""

    at: int
    gold: bool
    object: int


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids, the weight of predicting each (below 1 it is the chance that it counts), the lines' marks, and looks.

    A look (at, to, kind) says that what follows token `at` is a decision, read off the handle at token `to` (its next
    digit: kind 0; the name that its line leads to: kind 1) or not (kind -1): a turn's first token, a keyword.
    """

    ids: list[int]
    weights: list[float]
    marks: list[Mark]
    looks: list[tuple[int, int, int]] = field(default_factory=list)


class Library:
    """A generated world with its passages indexed by what a search would match: entity, relation, word of a name."""

    def __init__(self, rng: random.Random, split: Split, size: int = 250) -> None:
        low = {"train": 10_000_000, "heldout": 2_000_000_000}[split]
        self.rng = rng
        self.world = World.make(low + rng.randrange(1_000_000_000), size, split)
        self.text = {doc.id: f"{doc.title}: {doc.text}" for doc in self.world.documents}
        self.object = {fact.doc: fact.object for fact in self.world.facts}
        self.of_entity: dict[str, list[str]] = defaultdict(list)
        self.of_relation: dict[str, list[str]] = defaultdict(list)
        self.of_word: dict[str, list[str]] = defaultdict(list)
        for fact in self.world.facts:
            self.of_relation[fact.relation].append(fact.doc)
            for name in (fact.subject, fact.object):
                self.of_entity[name].append(fact.doc)
                for word in name.split():
                    self.of_word[word].append(fact.doc)

    def questions(self, hops: int, count: int, wide: float = 0.0) -> list[tuple[str, list[dict]]]:
        """(question, chain of links) for `count` tasks of `hops` hops."""
        tasks = self.world.tasks(count, (hops,), self.rng.randrange(1 << 30), wide)
        return [(task.prompt, task.truth["chain"]) for task in tasks]

    def results(self, link: dict, count: int, seen: set[str]) -> list[Line]:
        """The passage that states `link` among `count` shuffled lines; the others mostly share its subject or relation.

        `seen` holds the passages already shown, and grows by the new ones.
        """
        rng, chosen = self.rng, [link["doc"]]
        pools = (
            self.of_entity[link["subject"]],
            self.of_relation[link["relation"]],
            self.of_word[rng.choice(link["subject"].split())],
            list(self.text),
        )
        while len(chosen) < count:
            doc = rng.choice(rng.choices(pools, (0.4, 0.35, 0.15, 0.1))[0])
            if doc not in chosen and (doc not in seen or rng.random() < 0.05):
                chosen.append(doc)
            elif rng.random() < 0.1:  # a small pool may be used up
                chosen += [d for d in (rng.choice(list(self.text)),) if d not in chosen and d not in seen]
        seen.update(chosen)
        rng.shuffle(chosen)
        return [Line(self.text[doc], doc == link["doc"], self.object[doc]) for doc in chosen]


def call(tool: str, argument: str, value: str) -> str:
    """A tool call in the agent's format; `value` is JSON text, strings inside it begin with a space."""
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {{"{argument}": {value}}}}}\n</tool_call>'


def search_call(query: str) -> str:
    """`query` begins with a space."""
    return call("search_corpus", "query", f'"{query}"')


def keep_call(handles: list[int]) -> str:
    return call("prune_chunks", "keep", "[" + ", ".join(f'" #{h}"' for h in handles) + "]")


def opening(question: str, system: bool) -> Piece:
    head = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" if system else ""
    return Piece(f"{head}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")


def act(text: str, handles: list[int] | None = None, after: int = 0, name: str = "") -> Piece:
    """What the agent says: predicted at full weight, up to and including the end of its turn."""
    return Piece(f"{text}<|im_end|>", 1.0, None, tuple(handles or ()), after, name)


def line_pieces(lines: list[Line], first: int, only_gold: bool = False) -> list[Piece]:
    """The lines numbered from `first`; line breaks stand apart, so that the mark is on the last digit."""
    shown = [(n, line) for n, line in enumerate(lines, first) if line.gold or not only_gold]
    return [p for n, line in shown for p in (Piece(f"{line.text} #{n}", line=line, handles=(n,)), Piece("\n"))]


def response(body: list[Piece], usage: str) -> list[Piece]:
    """A tool response, up to the next generation prompt."""
    head = Piece("\n<|im_start|>user\n<tool_response>\n")
    return [head, *body, Piece(f"{usage}\n</tool_response><|im_end|>\n<|im_start|>assistant\n")]


def usage_line(rng: random.Random, full: bool) -> str:
    """The harness's usage line, past half of the window or not."""
    limit = rng.choice((384, 448, 512, 640))
    used = rng.randrange(limit // 2 + 1, limit) if full else rng.randrange(80, limit // 2 + 1)
    return Window(limit).usage(used, "Prune or answer.")


def trajectory(
    library: Library, question: str, links: list[dict], results: int, system: bool, full: float = 0.25, first: int = 1
) -> list[Piece]:
    """Search for every link, at once for those that the question names, and finish with the handles, in hop order.

    Handles count from `first`. With chance `full` a window is said to be past half full; before the last turn that
    calls for a prune, after which only the kept lines stand in the view (half of these examples end with the prune).
    """
    rng, pieces, seen = library.rng, [opening(question, system)], set()
    keep: list[int] = []
    turns = [[link for link in links if link["after"] < 0], *([link] for link in links if link["after"] >= 0)]
    for turn, asked in enumerate(turns):
        queries = "\n".join(search_call(query_for(link)) for link in asked)
        source = keep[asked[0]["after"]] if turn else 0
        pieces.append(act(queries, after=source, name=asked[0]["subject"] if len(asked) == 1 else ""))
        whole, kept = [], []
        for number, link in enumerate(asked):
            lines = library.results(link, results, seen)
            keep += [first + i for i, line in enumerate(lines) if line.gold]
            whole += [Piece("</tool_response>\n<tool_response>\n")] * (number > 0) + line_pieces(lines, first)
            kept += line_pieces(lines, first, only_gold=True)
            first += results
        tight = rng.random() < full
        if not tight or turn + 1 == len(turns):
            pieces += response(whole, usage_line(rng, tight))
        elif rng.random() < 0.5:
            return [*pieces, *response(whole, usage_line(rng, True)), act(keep_call(keep), keep)]
        else:
            pieces += [*response(kept, usage_line(rng, True)), Piece(f"{keep_call(keep)}<|im_end|>")]
            pieces += response([Piece(f"Pruned {results - 1}.\n")], usage_line(rng, False))
    return [*pieces, act("".join(f" #{h}" for h in keep), keep)]


def first_query(question: str, links: list[dict], system: bool) -> list[Piece]:
    """A question and the first search alone: cheap practice in copying names out of questions."""
    return [opening(question, system), act(search_call(query_for(links[0])), name=links[0]["subject"])]


def told_tool(rng: random.Random, split: Split) -> list[Piece]:
    """The user names a tool and its argument; the agent makes that call. Covers the tools that trajectories leave out."""
    name, handles = any_name(rng, rng.choice(KINDS), split), rng.sample(range(1, 40), rng.randrange(1, 5))
    tool = rng.choice(("grep", "read", "keep", "search", "answer"))
    listed = " ".join(f"#{h}" for h in handles)
    asked, said = {
        "grep": (f"Grep for {name}", call("grep_corpus", "pattern", f'" {name}"')),
        "read": (f"Read #{handles[0]}", call("read_document", "doc_id", f'" #{handles[0]}"')),
        "keep": (f"Keep {listed}", keep_call(handles)),
        "search": (f"Search for {name}", search_call(" " + name)),
        "answer": (f"Answer with {listed}", f" {listed}"),
    }[tool]
    return [opening(asked, rng.random() < 0.2), act(said)]


def name_list(rng: random.Random, split: Split) -> list[Piece]:
    """Names listed twice in different orders: the second list is predictable from each name's first syllable on."""
    names = [any_name(rng, kind, split) for kind in KINDS]
    again = rng.sample(names, len(names))
    return [Piece(" " + ", ".join(names) + "."), Piece(" " + ", ".join(again) + ".\n", 0.5)]


def drill(rng: random.Random, vocab: tuple[int, int], length: int) -> Example:
    """Token-level practice without language: repeated stretches (60%), or keys looked up for their values (40%).

    `vocab` is the range of ids to draw from; only what can be predicted carries weight.
    """
    draw = lambda: rng.randrange(*vocab)  # noqa: E731
    if rng.random() < 0.6:
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) < length:
            if len(ids) > 8 and rng.random() < 0.6:
                size = rng.randrange(3, 12)
                start = rng.randrange(0, max(1, len(ids) - size))
                copied = ids[start : start + size]
                weights += [0.0] + [1.0] * (len(copied) - 1)
            else:
                copied = [draw() for _ in range(rng.randrange(4, 12))]
                weights += [0.0] * len(copied)
            ids += copied
        ids, weights = ids[:length], weights[:length]
    else:
        table = {draw(): draw() for _ in range(length // 5)}
        ids, weights = [t for kv in table.items() for t in kv], [0.0] * (2 * len(table))
        while len(ids) + 2 <= length:
            key = rng.choice(list(table))
            ids += [key, table[key]]
            weights += [0.0, 1.0]
    return Example(ids, weights, [])


def library_files() -> list[Path]:
    """The sources of Python's standard library: no tests, no third parties."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skip = ("site-packages", "test", "idlelib", "lib2to3", "encodings", "pydoc_data", "turtledemo")
    return [f for f in sorted(root.rglob("*.py")) if not any(s in str(f.relative_to(root)) for s in skip)]


def library_texts() -> list[str]:
    """Python's own documentation topics and the sources of its standard library."""
    topics = [text for _, text in sorted(pydoc_data.topics.topics.items())]
    return topics + [f.read_text(encoding="utf-8", errors="ignore") for f in library_files()]


def encode(tokenizer, batch: list[list[Piece]]) -> list[Example]:
    """Pieces to examples; each piece is tokenised on its own. `tokenizer` is a `tokenizers.Tokenizer`."""
    flat = [p for pieces in batch for p in pieces]
    encoded = iter(tokenizer.encode_batch([p.text for p in flat], add_special_tokens=False))
    objects = iter(tokenizer.encode_batch([f" {p.line.object}" for p in flat if p.line], add_special_tokens=False))
    names = iter(tokenizer.encode_batch([f" {p.name}" for p in flat if p.name], add_special_tokens=False))
    sign, before = tokenizer.token_to_id("Ġ#"), len(tokenizer.encode(search_call("").partition('"}')[0]).ids)
    examples = []
    for pieces in batch:
        example, at = Example([], [], []), {}
        for piece in pieces:
            start, new = len(example.ids), next(encoded).ids
            example.ids.extend(new)
            example.weights.extend([piece.weight] * len(new))
            if piece.line:
                end, digits = len(example.ids), len(str(piece.handles[0]))
                named = next(objects).ids[0]
                first = -1 if piece.line.object[0].isdigit() else named
                at[piece.handles[0]] = end - digits
                example.marks.extend(Mark(place, piece.line.gold, first) for place in range(end - digits, end))
            elif piece.handles and piece.weight == 1:
                signs = [start + i for i, token in enumerate(new) if token == sign]
                for place, handle in zip(signs, piece.handles, strict=True):
                    example.looks.extend((place + d, at[handle] + d, 0) for d in range(len(str(handle))))
            if piece.weight == 1:
                example.looks.append((start - 1, start - 1, -1))
            if piece.name:
                keyword = start + before + len(next(names).ids)
                example.looks.append((keyword - 1, keyword - 1, -1))
            if piece.after:
                example.looks.append((start + before - 1, at[piece.after] + len(str(piece.after)) - 1, 1))
        examples.append(example)
    return examples


def text_windows(tokenizer, rng: random.Random, length: int) -> Iterator[Example]:
    """Endless windows of `length` tokens of library text, files in random order."""
    stream: list[int] = []
    texts = library_texts()
    while True:
        for text in rng.sample(texts, len(texts)):
            stream += [*tokenizer.encode(text, add_special_tokens=False).ids, 0]
            while len(stream) >= length:
                yield Example(stream[:length], [TEXT_WEIGHT] * length, [])
                del stream[:length]
