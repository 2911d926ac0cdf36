"""A harness and an index in forty lines, so that worlds and teachers are tested without the real ones."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from trivium.trace.episode import Task


class Index:
    """Plain BM25 (k1 1.2, b 0.75) over title and text, lower-cased words, no stemming, no stop words."""

    def __init__(self, documents: Sequence) -> None:
        self.ids = [document.id for document in documents]
        self.lines = {document.id: f"{document.title}: {document.text}" for document in documents}
        self.counts = [Counter(_words(line)) for line in self.lines.values()]
        held = Counter(word for count in self.counts for word in count)
        self.idf = {word: math.log(1 + (len(self.ids) - n + 0.5) / (n + 0.5)) for word, n in held.items()}
        mean = sum(count.total() for count in self.counts) / len(self.ids)
        self.norms = [1.2 * (0.25 + 0.75 * count.total() / mean) for count in self.counts]

    def search(self, query: str, exclude: set[str] = frozenset(), limit: int = 4) -> list[str]:
        words = [word for word in _words(query) if word in self.idf]
        scored = []
        for number, (id, count, norm) in enumerate(zip(self.ids, self.counts, self.norms, strict=True)):
            score = sum(self.idf[w] * count[w] * 2.2 / (count[w] + norm) for w in words if count[w])
            if score and id not in exclude:
                scored.append((-score, number, id))
        return [id for *_, id in sorted(scored)[:limit]]

    def grep(self, pattern: str, exclude: set[str] = frozenset(), limit: int = 5) -> list[str]:
        return [id for id in self.ids if pattern.strip() in self.lines[id] and id not in exclude][:limit]


def live(speak, task: Task, index: Index, budget: int = 512, turns: int = 30) -> tuple[list[str], set[str], list[dict]]:
    """One episode: (ids returned, ids seen, messages). `speak(messages)` returns an assistant message; a token is 3 letters.

    Prunes rewrite earlier tool results; past nine tenths of the budget searches are refused.
    """
    messages: list[dict] = [{"role": "system", "content": "Find."}, {"role": "user", "content": task.prompt}]
    handles: dict[str, str] = {}
    for _ in range(turns):
        said = speak(messages)
        messages.append(said)
        if not said.get("tool_calls"):
            ids = {handle: id for id, handle in handles.items()}
            return [ids[handle] for handle in said["content"].split() if handle in ids], set(handles), messages
        for asked in said["tool_calls"]:
            messages.append({"role": "tool", "content": _act(asked["function"], index, handles, messages, budget)})
        messages[-1]["content"] += f"[Token usage: {_size(messages)}/{budget}]"
    raise AssertionError(f"no answer after {turns} turns: {messages}")


def _act(function: dict, index: Index, handles: dict[str, str], messages: list[dict], budget: int) -> str:
    name, arguments = function["name"], function["arguments"]
    if name == "prune_chunks":
        kept = {ref.strip() for ref in arguments["keep"]}
        for message in messages:
            if message["role"] == "tool":
                lines = message["content"].splitlines(keepends=True)
                message["content"] = "".join(x for x in lines if not _handle(x) or _handle(x) in kept)
        return "Pruned.\n"
    if _size(messages) > 0.9 * budget:
        return "Error: the window is nearly full: prune_chunks or answer\n"
    find = index.search if name == "search_corpus" else index.grep
    found = find(*arguments.values(), exclude=set(handles))
    for id in found:
        handles[id] = f"#{len(handles) + 1}"
    return "".join(f"{index.lines[id]} {handles[id]}\n" for id in found) or "Nothing new.\n"


def _handle(line: str) -> str:
    return match[1] if (match := re.search(r" (#\d+)\n$", line)) else ""


def _size(messages: list[dict]) -> int:
    return sum(len(str(message)) for message in messages) // 5


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
