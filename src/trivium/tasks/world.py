"""Generated worlds of companies, people, products and cities. Every fact is known, because it is invented.

    world = World.make(seed=0, size=450)
    world.documents[0]   Document(id="brennix-holt-10-k.0", title="Brennix Holt 10-K", text="Mira Tolen is chief ...")
    world.tasks(100)     "What is the birthplace of the person who runs Brennix Holt?" and which documents answer it

A document is one passage: one fact in one short sentence. Passages of one page (a filing, or the web page of an
entity) share its title, their ids are the page's, a dot and a number, and `pages()` joins them. **No two passages of a
world name the same pair of entities**, so a fact can be read in one place only; `proof.prove` checks it. Former facts
("no longer lives in") and namesakes (two people of one family name) make wrong passages plausible.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from trivium.corpus.base import Document
from trivium.errors import InputError
from trivium.tasks import names
from trivium.tasks.relations import BY_KEY, FORMER, RELATIONS, Relation
from trivium.trace.episode import Task

Kind = names.Kind | Literal["prize"]
SHARES: dict[Kind, float] = {
    "company": 1.0, "person": 1.5, "product": 0.8, "city": 0.8, "school": 0.3, "river": 0.4, "prize": 0.25,
}  # fmt: skip
"""The number of entities of a kind for each company."""

_PASSAGES_PER_COMPANY = 35
_LOOSE = 0.07
"""Share of facts stated without their relation's keyword: a well-formed query may miss those."""

_FORMER = 0.75
"""Share of facts, where `FORMER` has a sentence, beside which the world also states who or what came before."""

_NAMESAKE = 0.5
"""Share of people and companies whose name shares a word with an earlier one."""


@dataclass(frozen=True, slots=True)
class Fact:
    """`relation` (a key of `relations.BY_KEY`) leads from `subject` to `object`, both names. The document `doc` states it.

    A `former` fact is stated but no longer true, and no question asks for it.
    """

    subject: str
    relation: str
    object: str
    doc: str
    former: bool = False


@dataclass(frozen=True)
class World:
    """Documents, and the facts that they state. Equal arguments of `make` give equal worlds on any machine."""

    documents: tuple[Document, ...]
    facts: tuple[Fact, ...]
    name: str

    @classmethod
    def make(cls, seed: int, size: int = 450, split: names.Split = "train") -> World:
        """A world of about `size` documents (within a fifth), named from the words of `split` only.

        Raises InputError for a size under 150, where some kinds would have too few members to relate, and an unknown split.
        """
        if size < 150:
            raise InputError(f"a world of {size} documents is too small to ask about; give a size of 150 or more")
        if split not in get_args(names.Split):
            raise InputError(f"a world is named by the words of {' or '.join(get_args(names.Split))}, not {split!r}")
        rng = random.Random(f"world {seed} {size} {split}")
        cast = _cast(rng, max(4, round(size / _PASSAGES_PER_COMPANY)), split)
        facts = list(_facts(rng, cast))
        return cls(*_write(rng, facts), f"{split}-{seed}-{size}")

    def tasks(self, count: int, hops: Sequence[int] = (1, 2, 3), seed: int = 0, wide: float = 0.0) -> list[Task]:
        """`count` tasks, no two worded alike, of the numbers of `hops` in turn. Each walks along facts, never back.

        A share `wide` of them asks two unrelated one-hop questions at once. `truth` holds

            gold     document ids, in hop order
            answer   the last object's name (of a wide task, the second question's)
            hops     links in the longest line of thought: 1 for a wide task
            chain    a link per gold document: subject, relation, keyword, object, doc, and `after`, the index of the
                     link whose object is this subject, or -1 where the question names the subject

        Raises InputError where the world is too small for so many.
        """
        if not hops or min(hops) < 1 or max(hops) > 4:
            raise InputError(f"hops must be between 1 and 4, got {tuple(hops)}")
        rng = random.Random(f"tasks {self.name} {seed}")
        tasks: list[Task] = []
        prompts: set[str] = set()
        for _ in range(50 * count + 1000):
            if len(tasks) == count:
                return tasks
            length = hops[len(tasks) % len(hops)]
            lines = [self._walk(rng, 1) for _ in range(2)] if rng.random() < wide else [self._walk(rng, length)]
            task = _task(rng, f"{self.name}/{seed}/{len(tasks)}", lines)
            if task and task.prompt not in prompts:
                prompts.add(task.prompt)
                tasks.append(task)
        raise InputError(f"a world of {len(self.documents)} documents has no {count} different tasks; make it larger")

    def pages(self) -> tuple[Document, ...]:
        """The same text with a document per page, a paragraph per passage."""
        lines: dict[tuple[str, str], list[str]] = {}
        for doc in self.documents:
            lines.setdefault((doc.id.rpartition(".")[0], doc.title), []).append(doc.text)
        return tuple(Document(page, title, "\n\n".join(texts)) for (page, title), texts in lines.items())

    @cached_property
    def _by_subject(self) -> dict[str, dict[str, Fact]]:
        """The true facts: subject -> relation -> fact."""
        facts: dict[str, dict[str, Fact]] = {}
        for fact in self.facts:
            if not fact.former:
                facts.setdefault(fact.subject, {})[fact.relation] = fact
        return facts

    @cached_property
    def _by_relation(self) -> dict[str, list[Fact]]:
        return {key: [f for f in self.facts if f.relation == key and not f.former] for key in BY_KEY}

    def _walk(self, rng: random.Random, hops: int) -> list[Fact]:
        """A line of `hops` facts, each about the object of the one before; shorter where it ran into a dead end.

        Relations are drawn before entities, so that rare kinds are asked about as often as common ones.
        """
        walk = [rng.choice(self._by_relation[rng.choice(RELATIONS).key] or self.facts)]
        while len(walk) < hops:
            path = {fact.subject for fact in walk} | {fact.relation for fact in walk}
            edges = self._by_subject.get(walk[-1].object, {})
            onward = [fact for key, fact in edges.items() if not {key, fact.object} & path]
            if not onward:
                break
            walk.append(rng.choice(onward))
        return walk if len(walk) == hops and not any(fact.former for fact in walk) else []


def query_for(link: dict[str, Any]) -> str:
    """The well-formed query for one link of a task's chain: ` Brennix Holt chief executive`."""
    return f" {link['subject']} {link['keyword']}"


# --- entities ---------------------------------------------------------------------------------------------------------


def _cast(rng: random.Random, companies: int, split: names.Split) -> dict[str, list[str]]:
    """Names by kind. No name is a word of another, so finding a name in a text means the entity."""
    cast: dict[str, list[str]] = {}
    full: set[str] = set()
    words: set[str] = set()
    for kind, share in SHARES.items():
        cast[kind] = []
        while len(cast[kind]) < max(3, round(share * companies)):
            name = _new_name(rng, kind, cast[kind], split)
            if name not in full | words and full.isdisjoint(name.split()):
                full.add(name)
                words.update(name.split())
                cast[kind].append(name)
    return cast


def _new_name(rng: random.Random, kind: Kind, earlier: list[str], split: names.Split) -> str:
    if kind == "school":
        return f"{names.name(rng, 'school', split)} College"
    if kind == "prize":
        return f"{names.word(rng, 'family', split)} Prize"
    name = names.name(rng, kind, split)
    if kind not in ("company", "person") or not earlier or rng.random() > _NAMESAKE:
        return name
    words, namesake = name.split(), rng.choice(earlier).split()
    place = 1 if kind == "person" else rng.randrange(2)  # people share family names, companies either word
    words[place] = namesake[place]
    return " ".join(words)


# --- facts ------------------------------------------------------------------------------------------------------------


def _facts(rng: random.Random, cast: dict[str, list[str]]) -> Iterator[Fact]:
    """One fact per relation and subject, never two that name the same pair; then, here and there, a former one."""
    pairs: set[frozenset[str]] = set()
    for relation in RELATIONS:
        subjects, objects = _ends(relation, cast)
        turns = _turns(rng, objects)
        for subject in subjects:
            for former in (False, True):
                if former and (relation.key not in FORMER or rng.random() > _FORMER):
                    continue
                object = _partner(rng, subject, relation, turns, len(objects), pairs)
                if object:
                    pairs.add(frozenset((subject, object)))
                    yield Fact(subject, relation.key, object, "", former)


def _ends(relation: Relation, cast: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """The names for both ends of a relation. A flagship product has no maker: the two facts would answer each other."""
    if relation.key == "flagship":
        products = cast["product"][::2]
        return cast["company"][: len(products)], products
    if relation.key == "maker":
        return cast["product"][1::2], cast["company"]
    return cast[relation.subject], cast.get(relation.object, [])


def _turns(rng: random.Random, objects: list[str]) -> Iterator[str]:
    """The objects again and again, each time in another order."""
    while objects:
        yield from rng.sample(objects, len(objects))


def _partner(
    rng: random.Random, subject: str, relation: Relation, turns: Iterator[str], tries: int, pairs: set[frozenset[str]]
) -> str:
    """The object of a new fact, or "" where every candidate is already paired with `subject`."""
    if relation.object == "year":
        return str(rng.randrange(1900, 2025))
    for _ in range(2 * tries):
        if (object := next(turns)) != subject and frozenset((subject, object)) not in pairs:
            return object
    return ""


# --- documents --------------------------------------------------------------------------------------------------------


def _write(rng: random.Random, facts: list[Fact]) -> tuple[tuple[Document, ...], tuple[Fact, ...]]:
    """The documents in page order, pages shuffled, and the facts with the documents that state them."""
    pages: dict[str, list[Fact]] = {}
    for fact in facts:
        title = f"{fact.subject} 10-K" if BY_KEY[fact.relation].filing else fact.subject
        pages.setdefault(title, []).append(fact)
    documents, sources = [], []
    for title in rng.sample(list(pages), len(pages)):
        for number, fact in enumerate(rng.sample(pages[title], len(pages[title]))):
            doc = Document(f"{re.sub('[^a-z0-9]+', '-', title.lower())}.{number}", title, _sentence(rng, fact))
            documents.append(doc)
            sources.append(Fact(fact.subject, fact.relation, fact.object, doc.id, fact.former))
    return tuple(documents), tuple(sources)


def _sentence(rng: random.Random, fact: Fact) -> str:
    relation = BY_KEY[fact.relation]
    if fact.former:
        template = FORMER[fact.relation]
    else:
        template = rng.choice(relation.loose if rng.random() < _LOOSE else relation.statements)
    return template.format(s=fact.subject, o=fact.object)


# --- questions --------------------------------------------------------------------------------------------------------


def _task(rng: random.Random, id: str, lines: list[list[Fact]]) -> Task | None:
    """The task that asks along `lines`, or None where one is empty or two meet: one name would give another away."""
    facts = [fact for line in lines for fact in line]
    if not all(lines) or len({end for fact in facts for end in (fact.subject, fact.object)}) != len(facts) + len(lines):
        return None
    first, *rest = [_question(rng, line) for line in lines]
    prompt = ", and ".join([first.rstrip("?"), *(question[0].lower() + question[1:-1] for question in rest)]) + "?"
    chain = [_link(fact, after) for line in lines for fact, after in zip(line, _after(facts, line), strict=True)]
    truth = {
        "gold": [fact.doc for fact in facts],
        "answer": facts[-1].object,
        "hops": max(map(len, lines)),
        "chain": chain,
    }
    return Task(id, prompt, truth)


def _after(facts: list[Fact], line: list[Fact]) -> list[int]:
    first = facts.index(line[0])
    return [-1, *range(first, first + len(line) - 1)]


def _question(rng: random.Random, line: list[Fact]) -> str:
    """The question along a line of facts. It names the first subject; each relation but the last describes, the last asks."""
    phrase = line[0].subject
    for fact in line[:-1]:
        phrase = _fill(rng.choice(BY_KEY[fact.relation].phrases), phrase)
    return _fill(rng.choice(BY_KEY[line[-1].relation].questions), phrase)


def _fill(template: str, phrase: str) -> str:
    """`template` with `phrase` for `{x}`. A phrase keeps its own article: there is never "the the"."""
    if phrase.startswith(("the ", "whoever ")):
        template = template.replace("the {x}", "{x}")
    return template.format(x=phrase)


def _link(fact: Fact, after: int) -> dict[str, Any]:
    keyword = BY_KEY[fact.relation].keyword
    return {
        "subject": fact.subject, "relation": fact.relation, "keyword": keyword, "object": fact.object, "doc": fact.doc,
        "after": after,
    }  # fmt: skip
