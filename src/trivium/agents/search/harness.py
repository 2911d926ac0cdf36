"""The search agent's harness on any corpus: for its teacher, for RL, for evaluation and for serving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trivium.agents.search.citation import repetition
from trivium.agents.search.reward import SearchReward
from trivium.agents.search.tools import BRIEF, BRIEF_UNPRUNED, PROMPT, QUOTES, search_tools
from trivium.corpus import Corpus, open_embedder, read_documents
from trivium.harness import Harness, Limits, Scene, ToolError, Window, prune_chunks
from trivium.trace import Task

LARGE = 8192
"""Tokens of the least window that takes schemas and a prompt for models that read instructions."""


def open_corpus(path: str, window: Window, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """A person's documents (a folder, a JSONL file, the BEIR layout) in chunks that suit the window, with the offline
    embedder, whose vectors are cached; `progress` is told how many of how many new ones are made."""
    embedder = open_embedder("minilm", progress=progress)
    return Corpus.build(read_documents(path), embedder=embedder, chunk_words=min(150, 16 + window.budget // 80))


def harness_on(
    corpus: Corpus | Callable[[Task], Corpus], window: Window, results: int, pruning: bool = True, quoting: bool = False
) -> Harness:
    """The search agent's harness on any corpus. A small window gets the brief prompt, and no schemas to fill it."""
    brief = small(window.budget)
    prompt = (BRIEF if pruning else BRIEF_UNPRUNED) if brief else PROMPT
    tools = search_tools(corpus, results, pruning, quoting)
    return Harness(tools, window, prompt + QUOTES * quoting, limits_in(window), specs=not brief, ending=repetition)


def limits_in(window: Window) -> Limits:
    """How many turns an agent has in a window."""
    return Limits(turns=10 if small(window.budget) else 64)


def priced_turns(window: Window, real: bool) -> int:
    """The turns of which half are free. Without a price a policy paged on in passages until it had no turn left to answer
    (docs/log.md); in the generated world four hops need seven of ten."""
    return limits_in(window).turns if real else SearchReward().turns


def small(budget: int) -> bool:
    """Whether schemas and a long prompt would fill a window of so many tokens."""
    return budget < LARGE


def refusing(harness: Harness) -> Harness:
    """The same harness with pruning disabled: the policy is told of the tool as ever, and every call of it is refused. So
    an episode that never prunes stays the same, token for token, and a paired difference is that of pruning alone."""

    def refuse(scene: Scene, keep: list[str]) -> str:
        raise ToolError("pruning is disabled")

    tools = [replace(prune_chunks, function=refuse) if t.name == "prune_chunks" else t for t in harness.tools.values()]
    return harness.with_tools(tools)
