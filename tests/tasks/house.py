"""A harness in forty lines, so that teachers are tested without a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trivium.corpus import Corpus
from trivium.tasks import World
from trivium.trace.episode import Task


class Index:
    """A world's documents in a corpus of BM25 alone; four results a search, five a grep, ids of documents."""

    def __init__(self, world: World) -> None:
        self.corpus = Corpus.build(world.documents)
        self.lines = {document.id: f"{document.title}: {document.text}" for document in world.documents}

    def search(self, query: str, exclude: Iterable[str] = ()) -> list[str]:
        hits = self.corpus.search(query, limit=4, exclude=[f"{id}:0" for id in exclude])
        return [hit.chunk.doc_id for hit in hits]

    def grep(self, pattern: str, exclude: Iterable[str] = ()) -> list[str]:
        chunks = self.corpus.grep(pattern.strip(), limit=5, exclude=[f"{id}:0" for id in exclude])
        return [chunk.doc_id for chunk in chunks]


def live(speak, task: Task, index: Index, budget: int = 512, turns: int = 30):
    """One episode: (ids returned, ids seen, messages). `speak(messages)` returns an assistant message.

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
    """About the tokens of the conversation: four letters each, and a dozen for the form of a call."""
    calls = [asked["function"]["arguments"] for message in messages for asked in message.get("tool_calls", [])]
    return sum(len(message["content"]) for message in messages) // 4 + sum(12 + len(str(c)) // 4 for c in calls)
