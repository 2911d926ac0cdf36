"""What the prune penalty is for: a searcher that was taught to prune one chunk at a time, trained with it and without.

    trivium train benchmarks/prune_penalty.py --out runs/penalty-0
    trivium train benchmarks/prune_penalty.py --pruning 0 --model runs/penalty-0/model-sft --sft-steps 0 --out runs/free-0
    trivium eval --compare runs/penalty-0 runs/free-0

The search agent never meets this failure: its passages take 25 tokens and a prune 57. Here, as in the report, a chunk is
longer than a call, and the tool names what to drop. Of five lessons four drop one chunk a call, eight in a row, one all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cached_property

from trivium import CISPO, Corpus, Episode, Harness, Limits, Recipe, Scorer, Scripted, Task, ToolError, Window, tool
from trivium.agents.search import SearchReward, search_tools
from trivium.agents.search.pruning import prune_measures
from trivium.agents.search.tools import BRIEF, QUOTES
from trivium.corpus import open_embedder, read_documents
from trivium.corpus.search import CANDIDATES
from trivium.harness import Keep, Scene
from trivium.policy.scripted import call, say
from trivium.tasks import cloze_tasks

WINDOW = Window(1650, soft=0.5, hard=0.58, reply=96)  # a search fills it: one must prune before the next
RESULTS, CHUNK, TURNS, HELDOUT = 9, 70, 40, 36  # chunks a search, words of one at most (some 100 tokens)
SINGLY, EXTRA = 0.8, 0.1  # share of the lessons that drop one chunk a call, and that return more than two


@tool(frees=True)
def prune_chunks(scene: Scene, chunk_ids: list[str]) -> Keep:
    """Remove chunks from the view to free its budget."""
    drop = {ref.strip() for ref in chunk_ids} & set(scene.handles)
    if not drop or len(drop) == len(scene.handles):
        raise ToolError(f"name some that are in view and not all; in view are {' '.join(scene.handles) or 'no chunks'}")
    return Keep(tuple(ref for ref in scene.handles if ref not in drop), f"Pruned {len(drop)}.")


@dataclass(frozen=True)
class PrunePenalty(Recipe):
    """Train a searcher of linked pages that was taught to prune one chunk at a time, with the prune penalty or without."""

    corpus: str = "../shared/data/hotpotqa"  # a folder of linked pages with titles: HotpotQA in the BEIR layout
    pruning: float = 1.0  # weight of the prune penalty
    warmup: int = 896
    sft_steps: int = 112  # of 8 episodes each
    steps: int = 24
    groups: int = 6
    lr: float = 1e-4  # at 3e-4 drift decides which habit stays (docs/log.md, forty-sixth session)
    sft_size, least = 8, {"pruning": 0}

    @cached_property
    def pages(self) -> Corpus:
        return Corpus.build(read_documents(self.corpus), embedder=open_embedder("minilm"), chunk_words=CHUNK)

    @cached_property
    def questions(self) -> list[Task]:
        """Those of pairs of linked pages, one a pair, of which a search finds the first page, and a search with that page the
        other, where the answer stands. One search fills the window: it must be pruned, and who cannot read can do so."""
        documents, chosen = read_documents(self.corpus), []
        linked = [task for task in cloze_tasks(documents, 2 * len(documents), 0) if task.truth["hops"] == 2]
        for (page, link), task in {tuple(task.truth["gold"]): task for task in linked}.items():
            first = [hit.chunk for hit in self.pages.search(task.prompt, CANDIDATES)]
            seen = list(dict.fromkeys(chunk.doc_id for chunk in first))[:RESULTS]
            if seen[0] == page and link not in seen:
                second = self.pages.search(f"{task.prompt} {first[0].line}", CANDIDATES)
                new = next(hit.chunk for hit in second if hit.chunk.doc_id not in seen)
                if new.doc_id == link:
                    chosen.append(replace(task, truth={**task.truth, "answer": " ".join(new.text.split()[:6])}))
        return chosen

    def tasks(self, split: str) -> list[Task]:
        learned = random.Random(self.seed).sample(self.questions[HELDOUT:], len(self.questions[HELDOUT:]))
        return self.questions[:HELDOUT] if split == "heldout" else learned

    def harness(self) -> Harness:
        tools = [*search_tools(self.pages, RESULTS, pruning=False, quoting=True), prune_chunks]
        return Harness(tools, WINDOW, BRIEF.replace("keep", "chunk_ids") + QUOTES, Limits(turns=TURNS), specs=False)

    def scorer(self, step: int) -> Scorer:
        async def scores(episode: Episode) -> dict[str, float]:
            return {**await SearchReward(2.0, pruning=self.pruning)(episode), **prune_measures(episode, WINDOW)}

        return scores

    def judge(self) -> Scorer:
        return replace(self, pruning=1.0).scorer(0)

    def loss(self):
        return CISPO(high=1.0, eps=0.1) if self.algorithm == "cispo" else super().loss()

    def rate(self, step: int) -> float:
        return min(1.0, (step + 1) / 5)

    def lessons(self) -> Scripted:
        answers = {task.id: task.truth["answer"] for task in self.questions}

        def script(view):
            dice = random.Random(f"{self.seed} {view.stream[1:3]}")
            singly, extra = dice.random() < SINGLY, dice.choice((1, 2, 3, 4)) if dice.random() < EXTRA else 0
            lines = [line for m in view.messages if m["role"] == "tool" for line in str(m["content"]).split("\n")]
            shown = {handle: text for text, _, handle in (line.rpartition(" ") for line in lines) if handle.startswith("#")}
            others = sorted([*shown][1:], key=lambda handle: answers[view.stream[1]] not in shown[handle])
            if "#2" in shown:  # all but the first page, which the second search quotes
                return call(("prune_chunks", {"chunk_ids": [f" {each}" for each in (others[-1:] if singly else others)]}))
            if not others:
                return call(("search_corpus", {"query": " #0 #1" if shown else " #0"}))
            return say("".join(f" {each}" for each in ["#1", *others[: 1 + extra]]))

        return Scripted(script, self.renderer, "teacher")
