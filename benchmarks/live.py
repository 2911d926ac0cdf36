"""Real-time RL against a simulated population: does it get better by what people do, and does it refuse what is worse?

    python benchmarks/live.py --out runs/live

A search agent after a short warm-up is served (`trivium serve`), a population with a hidden taste uses it over HTTP
(benchmarks/population.py), and `trivium live` learns from what they do, turn by turn. Before the turns a candidate is tried
that passes the suite and is bad live: it finds everything, and names everything that it saw. After them one whose weights were
perturbed, and one that was trained on a hack. What people who are held out are asked before and after says how content
they truly are. Stopped or killed, the same command goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from benchmarks.population import Population, world
from trivium.eval import mean_interval
from trivium.loops.cycles import Cycle, Cycles
from trivium.loops.deploy import Deployments
from trivium.loops.run import read_json, write_json, write_text
from trivium.loops.traffic import held_out

QUESTIONS, HOLDOUT = 1200, 0.1
WARM = ("--warmup", "800", "--sft-steps", "50", "--steps", "0", "--eval-tasks", "64", "--workers", "1")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: turns, held-out people, lessons and steps of the completionist, and the options of
    `trivium live`."""

    cycles: int
    panel: int
    lessons: int
    steps: int
    live: str


WHOLE = Scale(6, 192, 180, 30, "--least 256 --most 640 --tasks 256 --guard 0.1 --margin 0.15 --patience 900")
QUICK = Scale(1, 16, 24, 2, "--least 32 --most 64 --tasks 32 --guard 0.4 --margin 0.5 --patience 120")
"""Everything once, too little of it to show anything but that it works."""


@dataclass(frozen=True, slots=True)
class Place:
    """The benchmark's folder, and its scale."""

    out: Path
    scale: Scale = WHOLE

    @property
    def run(self) -> Path:
        return self.out / "run"

    @property
    def documents(self) -> Path:
        return self.out / "documents.jsonl"

    def panel(self, name: str) -> Path:
        return self.out / f"panel-{name}.json"

    def cycles(self) -> list[Cycle]:
        return list(Cycles(self.run).all())


def trivium(*words: str | Path, **options) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "trivium", *map(str, words)], **options)


def prepare(place: Place, warm: str) -> None:
    """The run after its warm-up, and the documents that people ask about."""
    place.out.mkdir(parents=True, exist_ok=True)
    if warm and not place.run.exists():
        subprocess.run(["cp", "-r", warm, place.run], check=True)
    if not (place.run / "summary.json").exists():
        subprocess.run([sys.executable, "-m", "trivium", "train", "search", "--out", place.run, *WARM], check=True)
    if not place.documents.exists():
        lines = ({"_id": each.id, "title": each.title, "text": each.text} for each in world().documents)
        write_text(place.documents, "".join(json.dumps(line) + "\n" for line in lines))
    deployments = Deployments(place.run)
    deployments.begin(deployments.release(0, place.run / "model"))


class Server:
    """`trivium serve`, in a process of its own."""

    def __init__(self, place: Place) -> None:
        words = ("serve", place.run, "--data", place.documents, "--port", 0, "--temperature", 1.0, "--slots", 48)
        log = open(place.out / "server.log", "a")  # noqa: SIM115  (the process has it)
        self.process = trivium(*words, stdout=subprocess.PIPE, stderr=log, text=True)
        line = self.process.stdout.readline()
        if not (found := re.search(r"http://127\.0\.0\.1:\d+", line)):
            raise SystemExit(f"the server did not begin: see {place.out / 'server.log'}")
        self.base = found[0]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


# --- candidates that were made elsewhere


def completionist(place: Place, folder: Path) -> None:
    """Imitates a searcher that finds every document, and then names every passage in view."""
    from trivium.agents.search.recipe import Search
    from trivium.agents.search.teacher import Imperfection, Teacher
    from trivium.corpus import Corpus
    from trivium.loops import sft
    from trivium.nn import Network
    from trivium.policy import Scripted
    from trivium.recipe.find import opened
    from trivium.tasks.world import World
    from trivium.train import SFT, Compute, Learner

    _, recipe = opened(str(place.run))
    assert isinstance(recipe, Search)
    lands = {each.name: each for each in (World.make(seed, 450, "train") for seed in (1, 2, 3))}
    corpora = {name: Corpus.build(land.documents) for name, land in lands.items()}
    tasks = [task for land in lands.values() for task in land.tasks(place.scale.lessons // 3, (1, 2, 3, 4), 5)]
    teacher, by_id = Teacher(replace(Imperfection.none(), prune=0.2)), {task.id: task for task in tasks}

    def script(view):
        message = teacher.next(by_id[str(view.stream[1])], view.messages)
        return message if message.get("tool_calls") else everything(view)

    async def imitate() -> None:
        policy = Scripted(script, recipe.renderer, "teacher")
        harness = recipe.harness_on(lambda task: corpora[task.id.partition("/")[0]])
        lessons = [await harness.run(task, policy) for task in tasks]
        finished = [each for each in lessons if each.agent.stop and each.agent.stop.reason == "finished"]
        network = Network.load(place.run / "model")
        learner = Learner(network, SFT(), 1e-3, policies={"teacher"}, compute=Compute(2048))
        async for _ in sft(learner, finished, steps=place.scale.steps, size=16):
            pass
        network.save(folder)

    asyncio.run(imitate())


def everything(view):
    """An answer of every handle in view."""
    from trivium.policy.scripted import say

    shown = "\n".join(str(message["content"]) for message in view.messages if message["role"] == "tool")
    return say("".join(f" {handle}" for handle in dict.fromkeys(re.findall(r"(#\d+)$", shown, re.MULTILINE))))


def perturbed(place: Place, folder: Path) -> None:
    """The incumbent with noise on its weights."""
    import torch

    from trivium.nn import Network

    network, dice = incumbent(place), torch.Generator().manual_seed(0)
    noisy = {n: t + 0.3 * t.std() * torch.randn(t.shape, generator=dice) for n, t in network.state().items() if t.dim() > 1}
    network.load_state({**network.state(), **noisy})
    assert isinstance(network, Network)
    network.save(folder)


def hacked(place: Place, folder: Path) -> None:
    """Trained by RL on a hack: the less is done, the less can be found bad. Its reward is minus the calls that it makes."""
    from trivium.trace import Store
    from trivium.train import CISPO, AdamW, Batch, Compute, Group, Learner

    done = [cycle for cycle in place.cycles() if cycle.learned]
    wanted = {id for cycle in done[-2:] for id in cycle.learned}
    episodes = [each for each in Store(place.run / "served.db", readonly=True).select("served/") if each.id in wanted]
    costs = [-float(len(each.agent.calls)) for each in episodes]
    groups = [Group(e.id, [e], [cost], sum(costs) / len(costs)) for e, cost in zip(episodes, costs, strict=True)]
    learner = Learner(incumbent(place), CISPO(), 1e-3, optimizer=AdamW(8), compute=Compute(2048))
    for _ in range(3):
        learner.learn(Batch(groups))
    learner.network.save(folder)


def incumbent(place: Place):
    from trivium.nn import Network

    deployments = Deployments(place.run)
    return Network.load(deployments.model(deployments.read().incumbent))


# --- turns


async def turns(place: Place, people: Population, last: int, candidate: Path | None = None) -> None:
    """Turns of `trivium live` until record number `last` is done, while people ask."""
    done = len(finished(place))
    if done >= last:
        return
    new = len(place.cycles()) == done  # else one was stopped, and is gone on with
    words = ["--candidate", candidate] if candidate and new else ["--cycles", last - done]
    with open(place.out / "live.log", "a") as log:
        fixed = ("--score", "output_recall", "--holdout", HOLDOUT, *place.scale.live.split())
        process = trivium("live", place.run, *fixed, *words, stdout=log, stderr=log)
    began = time.monotonic()
    await people.live(lambda: process.poll() is not None)
    if process.returncode:
        raise SystemExit(f"`trivium live` failed: see {place.out / 'live.log'}")
    note(place, people, {"records": [done + 1, last], "seconds": time.monotonic() - began})


def finished(place: Place) -> list[Cycle]:
    return [cycle for cycle in place.cycles() if cycle.stage == "done"]


def note(place: Place, people: Population, facts: dict) -> None:
    """Keep what only the simulation knows: how content each person truly was with each episode."""
    with open(place.out / "truth.jsonl", "a") as file:
        file.write(json.dumps({**facts, "said": people.said, "truth": people.truth}) + "\n")
    people.truth.clear()
    people.said.clear()


async def look(place: Place, people: Population, name: str) -> None:
    """How content held-out people truly are with what serves now, each with a question of their own."""
    if place.panel(name).exists():
        return
    tasks = world().tasks(QUESTIONS + place.scale.panel, (1, 2), 0)[QUESTIONS:]
    began = time.monotonic()
    values = await people.panel(tasks, panelists(place.scale.panel))
    write_json(place.panel(name), {"satisfaction": values, "seconds": time.monotonic() - began})
    people.truth.clear()


def panelists(count: int) -> list[str]:
    """Names of people who are held out."""
    names = (f"panel-{number}" for number in itertools.count())
    return list(islice((name for name in names if held_out(f"local/{name}", HOLDOUT)), count))


async def walk(place: Place, server: Server) -> None:
    """The whole of it, from where it was: a bad candidate, turns, two bad candidates."""
    tasks, cycles = world().tasks(QUESTIONS, (1, 2), 0), place.scale.cycles
    people = Population(server.base, tasks, world().documents, seed=int(time.time()))
    await injected(place, people, 1, completionist)
    await look(place, people, "before")
    await turns(place, people, 1 + cycles)
    await look(place, people, "after")
    await injected(place, people, cycles + 2, perturbed)
    await injected(place, people, cycles + 3, hacked)


async def injected(place: Place, people: Population, number: int, make: Callable[[Place, Path], None]) -> None:
    """A candidate from elsewhere, judged as any other, as record `number`."""
    folder = place.out / "candidates" / make.__name__
    if len(finished(place)) < number and not folder.exists():
        await asyncio.to_thread(make, place, folder)
    await turns(place, people, number, folder)


# --- what it came to


def summary(place: Place) -> dict:
    """The numbers: what held-out people gained, what people truly thought turn by turn, and what became of each candidate."""
    before, after = (read_json(place.panel(name))["satisfaction"] for name in ("before", "after"))
    learning = [each for each in place.cycles() if not each.origin]
    return {
        "held_out_before": list(mean_interval(list(before.values()))),
        "held_out_after": list(mean_interval(list(after.values()))),
        "held_out_gain": list(mean_interval([after[task] - before[task] for task in before])),
        "cycles": [
            {"learned": len(each.learned), "people": each.served["everybody"]["reward"], "seconds": each.seconds} | fate(each)
            for each in learning
        ],
        "injected": {Path(each.origin).name: fate(each) for each in place.cycles() if each.origin},
    }


def fate(cycle: Cycle) -> dict:
    """What became of a candidate; what the gate and the canary saw, each as [mean, low, high] of candidate less incumbent."""
    judges = {"gate": (cycle.decision, "heldout"), "canary": (cycle.canary, "live")}
    seen = {who: record.get("evidence", {}).get(name, {}) for who, (record, name) in judges.items()}
    bounds = {who: [each[bound] for bound in ("mean", "low", "high")] for who, each in seen.items() if each}
    return {"outcome": cycle.outcome, "reason": cycle.reason} | bounds


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the benchmark's folder")
    parser.add_argument("--warm", default="", help="a run of the search agent to begin with; default: one is trained")
    parser.add_argument("--quick", action="store_true", help="one turn of everything, to see that it works")
    options = parser.parse_args(words)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    place = Place(options.out.absolute(), QUICK if options.quick else WHOLE)
    prepare(place, options.warm)
    server = Server(place)
    try:
        asyncio.run(walk(place, server))
    finally:
        server.close()
    numbers = summary(place)
    write_json(place.out / "live.json", numbers)
    print(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
