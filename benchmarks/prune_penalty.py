"""What the prune penalty is for: a searcher that was taught to prune one chunk at a time, trained with it and without.

    python benchmarks/prune_penalty.py ../shared/data/hotpotqa              three seeds, some 35 minutes each; goes on
    python benchmarks/prune_penalty.py ../shared/data/hotpotqa --seeds 1    one

The search agent itself never meets this failure (docs/learning.md): its passages take 25 tokens and a prune 57, so one at a
time frees nothing, and its tool names what to keep. Here, as in the report (reports.md 3.2), a chunk is longer than a call,
and the tool names what to drop. Of the teacher's episodes four in five drop one chunk a call, eight in a row; one drops all.
Both arms begin at one warm-up's weights, each in a process of one thread, and differ in the reward's prune penalty alone;
turns cost nothing. Held-out questions are about other pages. Stop it with Ctrl-C: a killed parent leaves its arms running.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import torch
from msgspec import Meta

from trivium import CISPO, SFT, AdamW, Corpus, Engine, Harness, Learner, Limits, Network, Sampling, ToolError, Window, tool
from trivium.agents.search import SearchReward, search_tools
from trivium.agents.search.pruning import NAN, prune_measures, prune_report
from trivium.agents.search.recipe import NANO
from trivium.agents.search.teacher import Imperfection, Teacher, with_chain
from trivium.agents.search.tools import BRIEF, QUOTES
from trivium.corpus import Chunk, Document, open_embedder, read_documents
from trivium.corpus.search import CANDIDATES
from trivium.eval import Pool, Result, evaluate
from trivium.harness import Keep, Scene
from trivium.loops import Plan, rl, rollouts, sft
from trivium.loops.run import read_json, write_json, write_text
from trivium.policy import Renderer, Scripted, View
from trivium.policy.message import Message
from trivium.policy.scripted import call
from trivium.tasks import cloze_tasks
from trivium.trace import Episode, Task

WINDOW = Window(1650, soft=0.5, hard=0.58, reply=96)  # a search fills it: one must prune before the next
RESULTS, CHUNK = 9, 70  # chunks a search, and words of one at most: some 100 tokens
LESSONS, SFT_STEPS, SFT_SIZE = 896, 112, 8
STEPS, GROUPS, SIZE, RATE = 24, 6, 8, 1e-4  # at 3e-4 drift decides which habit stays (docs/log.md, forty-sixth session)
HELDOUT, SAMPLES = 36, 4
ARMS = {"with": 1.0, "without": 0.0}
"""The weight of the reward's prune penalty."""

FAULTS = Imperfection(forget=0.0, over_include=0.1, prune=1.0, two_calls=0.0, sloppy_query=0.0)
SINGLY = 0.8
"""Share of the teacher's episodes that drop one chunk a call."""

DESIGN = {"window": asdict(WINDOW), "results": RESULTS, "chunk": CHUNK, "warm_up": [LESSONS, SFT_STEPS, SFT_SIZE],
          "rl": [STEPS, GROUPS, SIZE, RATE], "heldout": [HELDOUT, SAMPLES],
          "faults": asdict(FAULTS), "singly": SINGLY}  # fmt: skip

MEANS = ("reward", "f1", "answer_found", "prune_rate", "prunes", "prune_penalty")
METRICS = (*MEANS, "each", "streak")
PANELS = {
    "each": "chunks a prune",
    "streak": "most prunes in a row",
    "prune_rate": "episodes that prune",
    "reward": "reward (in training each arm's own)",
}


# --- the agent: long chunks, and a tool that names what to drop


@tool(frees=True)
def prune_chunks(scene: Scene, chunk_ids: Annotated[list[str], Meta(description="handles of the chunks to drop")]) -> Keep:
    """Remove chunks from the view to free its budget."""
    gone = {ref.strip() for ref in chunk_ids} & set(scene.handles)
    if not gone or len(gone) == len(scene.handles):
        raise ToolError(f"name some that are in view and not all; in view are {' '.join(scene.handles) or 'no chunks'}")
    return Keep(tuple(ref for ref in scene.handles if ref not in gone), f"Pruned {len(gone)}.")


class Pages:
    """Linked pages, and those of the questions they ask of themselves that two searches answer: the page behind the question
    is the first that it finds, the page linked there the first new one that question and page together find, and what is
    asked for stands on that page alone. So the window, which one search fills, must be pruned to answer them, and a policy
    that cannot read can (35 of HotpotQA's 36: what was seen is left out before a search ranks, which may change what comes
    first). `heldout` are about other pairs of pages than `learned`."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.corpus = Corpus.build(documents, embedder=open_embedder("minilm"), chunk_words=CHUNK)
        linked = [task for task in cloze_tasks(documents, 2 * len(documents), 0) if task.truth["hops"] == 2]
        every = {tuple(task.truth["gold"]): task for task in linked}
        chosen = with_chain([asked for task in every.values() if (asked := self._of_two_searches(task))], self.corpus)
        self.heldout, self.learned = chosen[:HELDOUT], chosen[HELDOUT:]
        tools = [*search_tools(self.corpus, RESULTS, pruning=False, quoting=True), prune_chunks]
        brief = BRIEF.replace("prune_chunks(keep)", "prune_chunks(chunk_ids)") + QUOTES
        self.harness = Harness(tools, WINDOW, brief, Limits(turns=40), specs=False)

    def _of_two_searches(self, task: Task) -> Task | None:
        """The task, asking for the first words of what the second search finds; None where two searches do not answer it."""
        page, link = task.truth["gold"]
        first = self._pages(task.prompt)
        if next(iter(first)) != page or link in list(first)[:RESULTS]:
            return None
        second = self._pages(f"{task.prompt} {first[page].line}")
        if next(doc for doc in second if doc not in list(first)[:RESULTS]) != link:
            return None
        return replace(task, truth={**task.truth, "answer": " ".join(second[link].text.split()[:6])})

    def _pages(self, query: str) -> dict[str, Chunk]:
        """The pages that a query finds, best first, each with its best chunk."""
        found: dict[str, Chunk] = {}
        for hit in self.corpus.search(query, CANDIDATES):
            found.setdefault(hit.chunk.doc_id, hit.chunk)
        return found


def habits(tasks: Sequence[Task], seed: int) -> Callable[[View], Message]:
    """The scripted teacher with this tool: what it would not keep it drops, in most episodes one chunk a call."""
    teacher, by_id = Teacher(FAULTS, seed), {task.id: task for task in tasks}

    def speak(view: View) -> Message:
        _, name, sample, *_ = view.stream
        task, messages = by_id[name], view.messages
        says = lambda messages: teacher.next(task, messages, int(sample))  # noqa: E731
        message = says(messages)
        one = random.Random(f"habit {seed} {name} {sample}").random() < SINGLY
        if one and _prunes(messages[-2]):  # the teacher itself never prunes twice in a row
            again = says(_without_prunes(messages))
            message = again if _prunes(again) and _others(messages, again) else message
        if not _prunes(message):
            return {**message, "tool_calls": message["tool_calls"][:1]} if message.get("tool_calls") else message
        drop = _others(messages, message)
        return call(("prune_chunks", {"chunk_ids": [f" {handle}" for handle in (drop[-1:] if one else drop)]}))

    return speak


def _prunes(message: Message) -> bool:
    return any(asked["function"]["name"] == "prune_chunks" for asked in message.get("tool_calls") or ())


def _without_prunes(messages: Sequence[Message]) -> list[Message]:
    """What a teacher is shown that shall forget that it has just pruned: calls and their results, one each, left out."""
    gone = {n + after for n, message in enumerate(messages) if _prunes(message) for after in (0, 1)}
    return [message for n, message in enumerate(messages) if n not in gone]


def _others(messages: Sequence[Message], prune: Message) -> list[str]:
    """The handles in view that a teacher's prune would not keep."""
    keep = {ref.strip() for ref in prune["tool_calls"][0]["function"]["arguments"]["keep"]}
    shown = (line.rpartition(" ")[2] for m in messages if m["role"] == "tool" for line in str(m["content"]).split("\n"))
    return [handle for handle in shown if handle.startswith("#") and handle not in keep]


# --- an arm: the warm-up's weights, RL, and what came of it


def judge(pruning: float) -> Callable:
    reward = SearchReward(beta=2.0, pruning=pruning)

    async def judged(episode: Episode) -> dict[str, float]:
        return {**await reward(episode), **prune_measures(episode, WINDOW)}

    return judged


async def warm_up(pages: Pages, seed: int, folder: Path) -> None:
    teacher = Scripted(habits(pages.learned, seed), Renderer.load(str(NANO)), name="teacher")
    asked = [divmod(n, len(pages.learned)) for n in range(LESSONS)]
    episodes = [await pages.harness.run(pages.learned[n], teacher, seed=seed, sample=sample) for sample, n in asked]
    learner = Learner(Network.load(NANO), SFT(), 1e-3, policies={"teacher"}, optimizer=AdamW(schedule=_up_then_down))
    async for event in sft(learner, episodes, steps=SFT_STEPS, size=SFT_SIZE, seed=seed):
        if event.step % 14 == 0:
            print(f"seed {seed} warm-up {event.step}/{SFT_STEPS}: loss {event.metrics['loss']:.3f}", flush=True)
    learner.network.save(folder)


def _up_then_down(version: int) -> float:
    return min((version + 1) / 10, max(0.1, 1 - version / SFT_STEPS))


async def reinforce(pages: Pages, seed: int, folder: Path, name: str) -> dict:
    """The curve of an arm, and its held-out scores after the warm-up and at the end, sampled. `folder` then has its model."""
    engine = Engine(Network.load(folder / "warm"), slots=GROUPS * SIZE, context=WINDOW.budget)
    learner = Learner(
        Network.load(folder / "warm"),
        CISPO(high=1.0, eps=0.1),
        RATE,
        optimizer=AdamW(substeps=2, schedule=lambda v: min(1.0, (v + 1) / 5)),
    )
    probe, asked = engine.renderer.encode("a few words"), Sampling(max_tokens=WINDOW.reply)
    source = rollouts(
        pages.harness, random.Random(seed).sample(pages.learned, len(pages.learned)), engine, lambda step: judge(ARMS[name]),
        Plan(groups=GROUPS, size=SIZE, steps=STEPS, seed=seed, sampling=asked),
    )  # fmt: skip

    async def measured(when: str) -> Result:
        how = {"sampling": asked, "samples": SAMPLES, "seed": seed, "prefix": when}
        return (await evaluate(pages.harness, pages.heldout, engine, judge(1.0), **how))[0]

    before, curve = await measured("before"), []
    async for event in rl(source, learner, engine, probe):
        m = event.metrics | {"each": _per(event.metrics, "prune_dropped", "prunes")}
        m["streak"] = _per(m, "prune_streak", "prune_rate")
        curve.append({name: m[name] for name in METRICS})
        print(f"seed {seed} {name} {event.step}/{STEPS}: " + ", ".join(f"{k} {m[k]:.2f}" for k in METRICS), flush=True)
    after = await measured("after")
    if not (folder / name).exists():
        learner.network.save(folder / name)
    return {"curve": curve, "before": asdict(before), "after": asdict(after)}


def _per(metrics: dict[str, float], count: str, of: str) -> float:
    return metrics[count] / metrics[of] if metrics[of] else NAN


def _arm(data: str, seed: int, folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    found = asyncio.run(reinforce(Pages(read_documents(data)), seed, folder, name))
    write_json(folder / f"{name}.json", found)


def run(data: str, seed: int, folder: Path) -> dict[str, dict]:
    """Both arms of a seed, side by side; what `folder` holds already is not made again."""
    _check(folder / "design.json")
    if not (folder / "warm").exists():
        asyncio.run(warm_up(Pages(read_documents(data)), seed, folder / "warm"))
    start = multiprocessing.get_context("spawn").Process
    missing = [name for name in ARMS if not (folder / f"{name}.json").exists()]
    arms = [start(target=_arm, args=(data, seed, folder, name), daemon=True) for name in missing]
    for process in arms:
        process.start()
    for process in arms:
        process.join()
    if any(process.exitcode for process in arms):
        raise SystemExit(f"seed {seed}: an arm died, its error stands above; the same command goes on")
    found = {name: read_json(folder / f"{name}.json") for name in ARMS}
    if found["with"]["before"]["scores"]["reward"] != found["without"]["before"]["scores"]["reward"]:
        raise SystemExit(f"{folder}: the arms did not begin as one policy")
    return found


def _check(kept: Path) -> None:
    """What is in a folder was found by this design, or the folder is new."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    if kept.exists() and read_json(kept) != DESIGN:
        raise SystemExit(f"{kept.parent} was made with other numbers; choose another --out")
    write_json(kept, DESIGN)


# --- what it came to


def summary(runs: Sequence[dict]) -> dict[str, dict[str, list[float]]]:
    """Over the held-out questions, each of which counts once: each arm before (the warm-up, the same for both) and after, also
    by seed, means with 95% intervals; and `difference`, without less with, paired by question."""
    told = {"warm-up": _pool(runs, "with", "before")} | {name: _pool(runs, name, "after") for name in ARMS}
    found = {name: _described(pool) for name, pool in told.items()}
    for name in ARMS:
        found |= {f"{name}, seed {seed}": _described(_pool([run], name, "after")) for seed, run in enumerate(runs)}
    found["difference"] = {name: list(told["without"].minus(told["with"], name)) for name in MEANS}
    return found


def _pool(runs: Sequence[dict], arm: str, when: str) -> Pool:
    return Pool(tuple(Result(**run[arm][when]) for run in runs))


def _described(pool: Pool) -> dict[str, list[float]]:
    pruned = prune_report({name: pool.values(name) for name in pool.results[0].scores})
    means = {name: list(pool.interval(name)) for name in MEANS}
    return means | {name: list(pruned[name]) for name in ("each", "streak")}


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """As Markdown: a line a measure."""
    lines = ["| held out, sampled | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for name in found["with"]:
        cells = (
            f"{m:.2f} [{low:.2f}, {high:.2f}]" for m, low, high in (column.get(name, (NAN,) * 3) for column in found.values())
        )
        lines.append(f"| {PANELS.get(name, name)} | " + " | ".join("" if "nan" in cell else cell for cell in cells) + " |")
    return "\n".join(lines)


def plot(runs: Sequence[dict], path: Path) -> None:
    """Training, a thin line a seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), dpi=120, layout="constrained")
    for axes, name in zip(figure.subplots(1, 4), ("each", "streak", "prune_rate", "reward"), strict=True):
        axes.set_title(PANELS[name], fontsize=10)
        for arm, colour in (("with", "#1f4e79"), ("without", "#c8553d")):
            for number, run in enumerate(runs):
                values = [step[name] for step in run[arm]["curve"]]
                label = f"{arm} the penalty" if not number else None
                axes.plot(range(1, len(values) + 1), values, color=colour, alpha=0.8, linewidth=1.2, label=label)
        axes.set_xlabel("RL step")
    axes.legend(fontsize=8)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="HotpotQA in the BEIR layout")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/prune-penalty"), help="folder of what is found")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    runs = [run(asked.data, seed, asked.out / f"seed-{seed}") for seed in range(asked.seeds)]
    found = summary(runs)
    command = shlex.join(["python", *sys.argv])
    told = "\n\n".join(["# With the prune penalty and without", f"    {command}", table(found), f"torch {torch.__version__}"])
    print(told)
    write_text(asked.out / "prune_penalty.md", f"{told}\n")
    write_json(asked.out / "prune_penalty.json", {"command": command, "design": DESIGN, "summary": found, "runs": runs})
    plot(runs, asked.out / "prune_penalty.png")


if __name__ == "__main__":
    main()
