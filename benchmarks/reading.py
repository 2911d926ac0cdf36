"""Effort where documents must be read: a search agent whose searches show how a page begins, and no more.

    python benchmarks/reading.py              three seeds, side by side two at a time; goes on where it was stopped
    python benchmarks/reading.py --seeds 1    one

The search agent itself never reads (docs/learning.md): its searches show the passage that they find. Here a document is a
whole page of a generated world, six facts on average, and a search shows the first line of each page that it finds, as a web
search does. That line states what a hop needs in about a quarter of the hops; for the others the page must be opened. The
warm-up's teacher forgets the last hop in six of ten episodes, so that RL has a reason to try harder. Questions, reward,
algorithm and all numbers of training are the search agent's recipe, which says nothing about reading. Held-out questions are
about worlds of other names. RL is also measured with its prunes refused, and the perfect script without the tool: what pruning
is worth where what fills the window are pages that had to be opened.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import torch
from msgspec import Meta

from trivium import SFT, AdamW, Corpus, Engine, Harness, Learner, Limits, Network, Sampling, ToolError, Window, tool
from trivium.agents.search import SearchReward, search_tools
from trivium.agents.search.measured import Speaker, effort, refusing
from trivium.agents.search.recipe import HOPS, NANO, Parts, Search
from trivium.agents.search.teacher import Imperfection, Teacher
from trivium.agents.search.tools import BRIEF
from trivium.corpus.search import CANDIDATES
from trivium.eval import Pool, Result, evaluate
from trivium.harness import Passage, Scene
from trivium.loops import Plan, rl, rollouts, sft
from trivium.loops.run import read_json, write_json, write_text
from trivium.policy import Policy, Renderer, Scripted, View
from trivium.policy.message import Message
from trivium.policy.scripted import call
from trivium.reward import Scorer
from trivium.tasks.proof import says
from trivium.trace import Episode, Task

WINDOW = Window(1280, soft=0.5, hard=0.85, reply=96)  # for two or three pages beside what four hops take of calls
RESULTS, LINE = 4, 10  # pages a search, and the most words of a line of one: each fact is one
TURNS = 24
FAULTS, PERFECT = Imperfection(two_calls=0.0), replace(Imperfection.none(), two_calls=0.0)
RECIPE = Search()
ASKED, SLOTS = Sampling(max_tokens=WINDOW.reply), RECIPE.groups * RECIPE.size
DESIGN = {"window": asdict(WINDOW), "results": RESULTS, "turns": TURNS, "faults": asdict(FAULTS), "recipe": RECIPE.fields()}

EFFORT = ("searches", "reads", "turns")
MEASURES = (*EFFORT, "calls_per_turn", "prune_rate", "reward", "f1", "output_recall", "answer_found", "finished")
SPEAKERS = (
    Speaker("sft", "sft"), Speaker("sft_greedy", "sft", greedy=True),
    Speaker("rl", "rl"), Speaker("rl_greedy", "rl", greedy=True),
    Speaker("rl_greedy_no_prune", "rl", greedy=True, pruning=False),
    Speaker("expert", "expert"), Speaker("expert_no_prune", "expert", pruning=False),
)  # fmt: skip


# --- the agent: a search shows how pages begin


def opening_search(corpus_of: Callable[[Task], Corpus]):
    @tool
    def search_corpus(scene: Scene, query: Annotated[str, Meta(description="what to look for, in words")]) -> list[Passage]:
        """Search the corpus by words. Returns how each page begins, best first, but for what is in view."""
        if not query.strip():
            raise ToolError("the query is empty")
        corpus = corpus_of(scene.task)
        pages = dict.fromkeys(hit.chunk.doc_id for hit in corpus.search(query.strip(), limit=CANDIDATES))
        begins = [chunk for chunk in (corpus.read(page)[0] for page in pages) if chunk.id not in scene.handles.values()]
        return [Passage(chunk.id, chunk.line) for chunk in begins[:RESULTS]]

    return search_corpus


class Pages:
    """The worlds of the search agent's recipe with a document a page, the same questions, and the harness on them."""

    def __init__(self, seed: int) -> None:
        self.parts = Parts(replace(RECIPE, seed=seed))
        self.corpora = {world.name: Corpus.build(world.pages(), chunk_words=LINE) for world in self.parts.worlds}
        self.lessons = [on_pages(task) for task in self.parts.warmup_tasks[: RECIPE.warmup]]
        self.learned, self.heldout = (list(map(on_pages, tasks)) for tasks in (self.parts.rl_tasks, self.parts.heldout_tasks))
        search, *others = search_tools(self.corpus_of)
        self.harness = Harness([opening_search(self.corpus_of), *others], WINDOW, BRIEF, Limits(turns=TURNS), specs=False)

    def corpus_of(self, task: Task) -> Corpus:
        return self.corpora[task.id.partition("/")[0]]

    def script(self, tasks: Sequence[Task], faults: Imperfection, seed: int) -> Callable[[View], Message]:
        """The scripted teacher; where the page that states the next link has its first line in view, it opens that page rather
        than searching again, and does not prune the line before."""
        teacher, by_id = Teacher(faults, seed), {task.id: task for task in tasks}

        def speak(view: View) -> Message:
            task, sample = by_id[view.stream[1]], int(view.stream[2])
            message = teacher.next(task, view.messages, sample)
            asked = [c["function"] for c in message.get("tool_calls") or ()]
            handle = self._unopened(task, view.messages) if asked else ""
            if handle and asked[0]["name"] == "search_corpus":
                return call(("read_document", {"doc_id": f" {handle}"}))
            if handle and asked[0]["name"] == "prune_chunks":
                return call(("prune_chunks", {"keep": [*asked[0]["arguments"]["keep"], f" {handle}"]}))
            return message

        return speak

    def _unopened(self, task: Task, messages: Sequence[Message]) -> str:
        """The handle of the first line of the page that states the next link, if that is in view and was not opened."""
        lines = [line for m in messages if m["role"] == "tool" for line in str(m["content"]).split("\n")]
        stated = lambda link: any(says(line, link["subject"]) and says(line, link["object"]) for line in lines)  # noqa: E731
        link = next((link for link in task.truth["chain"] if not stated(link)), None)
        if not link:
            return ""
        first = self.corpus_of(task).read(page_of(link["doc"]))[0].line
        calls = (c["function"] for m in messages if m["role"] == "assistant" for c in m.get("tool_calls") or ())
        opened = {asked["arguments"]["doc_id"].strip() for asked in calls if asked["name"] == "read_document"}
        shown = (line.rpartition(" ")[2] for line in lines if line.startswith(f"{first} #"))
        return next((handle for handle in shown if handle not in opened), "")


def page_of(doc: str) -> str:
    return doc.rpartition(".")[0]


def on_pages(task: Task) -> Task:
    return replace(task, truth={**task.truth, "gold": [page_of(doc) for doc in task.truth["gold"]]})


# --- a seed: a warm-up, RL, and what each policy then does


def judge(reward: SearchReward) -> Scorer:
    """The recipe's reward, beside what the effort was."""

    async def judged(episode: Episode) -> dict[str, float]:
        return {**await replace(reward, turns=TURNS, window=WINDOW)(episode), **effort(episode)}

    return judged


async def train(pages: Pages, seed: int, folder: Path) -> None:
    """A warm-up, then RL. `folder` then has both models, and the curve of RL."""
    if not (folder / "sft").exists():
        await warm_up(pages, seed, folder / "sft")
    parts, curve = pages.parts, []
    engine = Engine(Network.load(folder / "sft"), slots=SLOTS, context=WINDOW.budget)
    learner = Learner(Network.load(folder / "sft"), parts.algorithm, RECIPE.lr, optimizer=AdamW(RECIPE.substeps, parts.rate))
    source = rollouts(
        pages.harness, pages.learned, engine, lambda step: judge(parts.scorer(step)),
        Plan(RECIPE.groups, RECIPE.size, RECIPE.steps, seed=seed, branches=RECIPE.branches, sampling=ASKED),
    )  # fmt: skip
    async for event in rl(source, learner, engine, engine.renderer.encode("a few words")):
        curve.append({name: event.metrics[name] for name in MEASURES})
        told = ", ".join(f"{name} {value:.2f}" for name, value in curve[-1].items())
        print(f"seed {seed} RL {event.step}/{RECIPE.steps}: {told}", flush=True)
    write_json(folder / "curve.json", curve)
    learner.network.save(folder / "rl")


async def measure(pages: Pages, seed: int, folder: Path) -> None:
    """What each of SPEAKERS does with all held-out questions; one that `folder` has already is not asked again."""
    kept = folder / "found.json"
    found: dict = read_json(kept) if kept.exists() else {"hops": {task.id: task.truth["hops"] for task in pages.heldout}}
    for speaker in (speaker for speaker in SPEAKERS if speaker.name not in found):
        if speaker.stage == "expert":
            script = pages.script(pages.heldout, replace(PERFECT, prune=float(speaker.pruning)), seed)
            policy: Policy = Scripted(script, pages.parts.renderer, name="expert")
        else:
            policy = Engine(Network.load(folder / speaker.stage), slots=SLOTS, context=WINDOW.budget)
        result, _ = await evaluate(
            pages.harness if speaker.pruning else refusing(pages.harness), pages.heldout, policy, judge(pages.parts.judge),
            sampling=replace(ASKED, temperature=0.0) if speaker.greedy else ASKED, seed=seed, prefix=speaker.name,
        )  # fmt: skip
        print(f"seed {seed} measured {speaker.name}", flush=True)
        write_json(kept, found := found | {speaker.name: asdict(result)})


async def warm_up(pages: Pages, seed: int, folder: Path) -> None:
    teacher = Scripted(pages.script(pages.lessons, FAULTS, seed), Renderer.load(str(NANO)), name="teacher")
    episodes = [await pages.harness.run(task, teacher, seed=seed) for task in pages.lessons]
    learner = Learner(Network.load(NANO), SFT(), RECIPE.sft_lr, policies={"teacher"}, optimizer=AdamW(schedule=_up_then_down))
    async for event in sft(learner, episodes, steps=RECIPE.sft_steps, size=32, seed=seed):
        if event.step % 10 == 0:
            print(f"seed {seed} warm-up {event.step}/{RECIPE.sft_steps}: loss {event.metrics['loss']:.3f}", flush=True)
    learner.network.save(folder)


def _up_then_down(version: int) -> float:
    return min((version + 1) / 12, max(0.1, 1 - version / RECIPE.sft_steps))


def _seed(seed: int, folder: Path) -> None:
    torch.set_num_threads(1)
    pages = Pages(seed)
    if not (folder / "rl").exists():
        asyncio.run(train(pages, seed, folder))
    asyncio.run(measure(pages, seed, folder))


# --- what it came to


def of_hops(runs: Sequence[dict], speaker: str, hops: int) -> Pool:
    """Their scores of the questions that have so many hops; of all where that is 0."""
    known = {task: has for run in runs for task, has in run["hops"].items()}
    return Pool(tuple(Result(**run[speaker]) for run in runs)).where(lambda task: known[task] == hops or not hops)


def summary(runs: Sequence[dict]) -> dict:
    """By speaker and by hops the means of all seeds' questions, and differences paired by question: RL less SFT, and what
    pruning is worth; [mean, low, high]."""
    found: dict = {}
    for hops in (*HOPS, 0):
        pooled = {speaker.name: of_hops(runs, speaker.name, hops) for speaker in SPEAKERS}
        for name, pool in pooled.items():
            found.setdefault(name, {})[str(hops or "all")] = {m: list(pool.interval(m)) for m in MEASURES}
        for how in ("", "_greedy"):
            less = {m: list(pooled[f"rl{how}"].minus(pooled[f"sft{how}"], m)) for m in MEASURES}
            found.setdefault(f"rl{how} less sft{how}", {})[str(hops or "all")] = less
        for who in ("rl_greedy", "expert"):
            less = {m: list(pooled[who].minus(pooled[f"{who}_no_prune"], m)) for m in MEASURES}
            found.setdefault(f"{who} less itself without pruning", {})[str(hops or "all")] = less
    return found


def table(found: dict) -> str:
    """As Markdown: a row a speaker and number of hops."""
    lines = ["| who | hops | " + " | ".join(MEASURES) + " |", "|---" * (len(MEASURES) + 2) + "|"]
    for name, by_hops in found.items():
        for hops, means in by_hops.items():
            cells = " | ".join(f"{mean:.2f} [{low:.2f}, {high:.2f}]" for mean, low, high in means.values())
            lines.append(f"| {name.replace('_', ' ')} | {hops} | {cells} |")
    return "\n".join(lines)


def plot(found: dict, path: Path) -> None:
    """Effort by hops, greedy: after the warm-up, after RL, the perfect script."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), dpi=120, layout="constrained")
    shown = {"sft_greedy": ("SFT", "#9a9a9a"), "rl_greedy": ("RL", "#1f4e79"), "expert": ("perfect script", "#c8553d")}
    for axes, measure in zip(figure.subplots(1, len(EFFORT)), EFFORT, strict=True):
        axes.set_title(f"{measure} an episode, greedy", fontsize=10)
        for name, (label, colour) in shown.items():
            means = [found[name][str(hops)][measure] for hops in HOPS]
            ends = [[mean - low for mean, low, _ in means], [high - mean for mean, _, high in means]]
            axes.errorbar(HOPS, [mean for mean, *_ in means], ends, color=colour, label=label, capsize=3, marker="o", ms=4)
        axes.set_xticks(HOPS)
        axes.set_xlabel("hops of the question")
    axes.legend(fontsize=8)
    figure.savefig(path)


def run(seeds: Sequence[int], out: Path) -> list[dict]:
    """Every seed's run, two at a time; what `out` holds already is not made again. SystemExit where one died."""
    for seed in seeds:
        kept = out / f"seed-{seed}" / "design.json"
        kept.parent.mkdir(parents=True, exist_ok=True)
        if kept.exists() and read_json(kept) != DESIGN:
            raise SystemExit(f"{kept.parent} was made with other numbers; choose another --out")
        write_json(kept, DESIGN)
    folders = [out / f"seed-{seed}" for seed in seeds]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(_seed, zip(seeds, folders, strict=True), chunksize=1)
    return [{"curve": read_json(folder / "curve.json"), **read_json(folder / "found.json")} for folder in folders]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/reading"), help="folder of what is found")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    runs = run(range(asked.seeds), asked.out)
    found = summary(runs)
    command = shlex.join(["python", *sys.argv])
    told = "\n\n".join(["# Effort where documents must be read", f"    {command}", table(found), f"torch {torch.__version__}"])
    print(told)
    write_text(asked.out / "reading.md", f"{told}\n")
    write_json(asked.out / "reading.json", {"command": command, "design": DESIGN, "summary": found, "runs": runs})
    plot(found, asked.out / "reading.png")


if __name__ == "__main__":
    main()
