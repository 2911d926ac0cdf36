"""What the code base is trained on, as tokens: drills in copying with one change, transcripts of the scripted coder, and code.

An `Example` knows for each token that the coder copies where it stood (a look), which trains the last layer's attention, and
for each token of a file in view whether it belongs to what has to change (a mark), for two probes that are thrown away.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from bases.code.transcript import Coder, Transcript, segments
from bases.nano import data
from trivium.tasks.names import Split
from trivium.tasks.projects import projects

TEXT_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Mark:
    """Token `at` of a file in view: does its function hold a line to change; at a line's end, is that line one (else -1)."""

    at: int
    holds: int
    asked: int


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids, the weight of predicting each (below 1 it is the chance that it counts), marks, looks and decisions.

    A look (at, to) says that the token behind `at` is copied from `to`; a decision is the `at` of a copy's first token.
    """

    ids: list[int]
    weights: list[float]
    marks: list[Mark] = field(default_factory=list)
    looks: list[tuple[int, int]] = field(default_factory=list)
    decisions: list[int] = field(default_factory=list)


def encode(tokenizer: Tokenizer, transcripts: Sequence[Transcript]) -> list[Example]:
    """Transcripts to examples; each of their texts is tokenised on its own."""
    encoded = iter(tokenizer.encode_batch([text for t in transcripts for text, _ in t.texts], add_special_tokens=False))
    return [_example(transcript, [next(encoded) for _ in transcript.texts]) for transcript in transcripts]


def _example(transcript: Transcript, encoded: Sequence) -> Example:
    example, starts = Example([], []), []
    offset = 0
    for (text, weight), encoding in zip(transcript.texts, encoded, strict=True):
        example.ids.extend(encoding.ids)
        example.weights.extend([weight] * len(encoding.ids))
        starts += [offset + begin for begin, _ in encoding.offsets]
        offset += len(text)
    ends = [*starts[1:], offset]
    for copy in transcript.copies:
        first = True
        for at in range(bisect_left(starts, copy.to), bisect_left(starts, copy.to + copy.size)):
            source = bisect_left(starts, starts[at] - copy.to + copy.source)
            if source < at and example.ids[source] == example.ids[at]:
                example.looks.append((at - 1, source))
                if first:
                    example.decisions.append(at - 1)
                first = False
    for line in transcript.lines:
        for at in range(bisect_left(starts, line.start), bisect_left(starts, line.stop)):
            example.marks.append(Mark(at, line.holds, int(line.asked) if ends[at] == line.stop else -1))
    return example


def swap(rng: random.Random, vocab: tuple[int, int], length: int) -> Example:
    """Token-level practice: a stretch of tokens is said again with one of them changed for another, which stands before."""
    draw = lambda: rng.randrange(*vocab)  # noqa: E731
    example = Example([], [])
    while len(example.ids) < length:
        stretch = [draw() for _ in range(rng.randrange(4, 9))]
        at, new = rng.randrange(1, len(stretch)), draw()
        base = len(example.ids)
        again = [*stretch[:at], new, *stretch[at + 1 :]]
        example.ids.extend([stretch[at], new, *stretch, *again])
        example.weights.extend([0.0] * (3 + len(stretch)) + [1.0] * (len(stretch) - 1))
        second = base + 2 + len(stretch)
        example.looks.extend((second + k - 1, base + 1 if k == at else base + 2 + k) for k in range(1, len(stretch)))
        example.decisions.append(second + at - 1)
    return example


def drill(rng: random.Random, vocab: tuple[int, int], length: int) -> Example:
    """Stretches said again, keys and values, or stretches said again with one change."""
    if rng.random() < 0.5:
        return swap(rng, vocab, length)
    plain = data.drill(rng, vocab, length)
    return Example(plain.ids, plain.weights)


def coders(rng: random.Random, grade: int, count: int, split: Split = "train", **habits: float) -> list[Transcript]:
    """`count` transcripts of tasks of one grade; of long ones a window each."""
    made: list[Transcript] = []
    for task in projects(count, (grade,), rng.randrange(1 << 40), split):
        if grade > 3:
            made.append(rng.choice(segments(rng, task)))
        else:
            made.append(Coder(rng, task, rng.random() < 0.6, **habits).whole())
    return made


def code_windows(tokenizer: Tokenizer, rng: random.Random, length: int) -> Iterator[Example]:
    """Endless windows of `length` tokens: the files of generated projects, now and then the standard library's sources."""
    library = data.text_windows(tokenizer, rng, length)
    while True:
        texts = [
            f"{text}\n" for task in projects(16, (0, 1, 2, 3), rng.randrange(1 << 40)) for text in task.truth["files"].values()
        ]
        ids = [token for encoding in tokenizer.encode_batch(texts, add_special_tokens=False) for token in encoding.ids]
        for start in range(0, len(ids) - length, length):
            yield Example(ids[start : start + length], [TEXT_WEIGHT] * length)
        yield Example(next(library).ids, [TEXT_WEIGHT] * length)
