"""What the real soak kills: `python -m tests.loops.operate FOLDER`, the loop at lag 1 with a tiny model that is made there.

It goes on from its last checkpoint, writes a line per step to ledger.jsonl, and ends at the next checkpoint once FOLDER/stop
is there. Its engine breaks, its subscriber is replaced by a new one, and its publication fails before, within and after, now
and then, by a random stream of the process."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

from tests.conftest import make_tiny_model
from tests.laws.walks import search_corpus
from tests.loops.test_real import judge
from trivium.engine import Engine
from trivium.harness import Harness, Limits, Window, prune_chunks
from trivium.loops import Pace, Plan, rl, rollouts, through
from trivium.loops.run import write_text
from trivium.nn import Network
from trivium.policy import Renderer
from trivium.trace import Sampling, Store, Task
from trivium.train import CISPO, Batch, Checkpoints, Learner
from trivium.weights import Publisher, Subscriber, Weights, publish

TASKS = [Task(f"t{number}", f"Find {number}.") for number in range(6)]
GROUPS, SIZE, EVERY = 2, 4, 5


class Ledger(Learner):
    """Remembers which episodes each step learned from."""

    learned: list[list[str]] = []

    async def step(self, batch: Batch):
        done = await super().step(batch)
        self.learned.append([episode.id for group in batch.groups for episode in group.episodes])
        return done


class Fragile(Engine):
    """Breaks in one of 200 steps."""

    rng = random.Random()

    def _step(self) -> None:
        if self.rng.random() < 0.005:
            raise RuntimeError("broken on purpose")
        super()._step()


class Mortal(Subscriber):
    """Dies in one of ten waits, when it has read what it waited for, and another one begins with nothing."""

    def wait(self, version: int, seconds: float, every: float = 0.2) -> Weights:
        found = super().wait(version, seconds, every)
        if random.random() < 0.1:
            self.current = self._last = self._progress = None
            raise ConnectionError("the subscriber died on purpose")
        return found


def flaky(publish):
    """One of seven publications does not arrive, and one of three of those hangs before; one of twenty does, unheard."""

    async def tried(network, version, engine, probe) -> float:
        luck = random.random()
        await asyncio.sleep(60 if luck < 0.05 else 0.0)
        if luck < 0.15:
            raise ConnectionError("unplugged on purpose")
        gap = await publish(network, version, engine, probe)
        if luck > 0.95:
            raise ConnectionError("its answer was lost on purpose")
        return gap

    return tried


async def operate(folder: Path) -> None:
    model, ledger = folder / "model", folder / "ledger.jsonl"
    if not (model / "done").exists():
        make_tiny_model(model)
        (model / "done").touch()
    config = Network.load(model).config
    learner = Ledger(Network(config, seed=0), CISPO(), 1e-3)
    checkpoints = Checkpoints(folder / "checkpoints")
    loaded = checkpoints.load(learner) if checkpoints.folders() else None
    first = loaded.user["step"] if loaded else 0
    lines = ledger.read_text().splitlines()[:first] if ledger.exists() else []
    write_text(ledger, "".join(f"{line}\n" for line in lines))
    engine = Fragile(Network(config, seed=0), renderer=Renderer.load(model), slots=GROUPS * SIZE, context=900)
    probe = list(range(40))
    publish(learner.network, learner.version, engine, probe)
    harness = Harness([search_corpus, prune_chunks], Window(900), "Search.", Limits(turns=3), specs=False)
    source = rollouts(
        harness, TASKS, engine, lambda step: judge, Plan(GROUPS, SIZE, 1_000_000, first, sampling=Sampling(max_tokens=24)),
        pace=Pace(max_lag=1, seconds=60), store=Store(folder / "episodes.db"),
    )  # fmt: skip
    way = through(Publisher(folder / "weights", every=8), Mortal(folder / "weights"), seconds=4)
    line = rl(source, learner, engine, probe, publish=flaky(way), publish_seconds=5, deadline=120)
    async for event in line:
        with open(ledger, "a") as file:
            file.write(json.dumps({"learned": learner.learned[-1], "metrics": event.metrics}) + "\n")
        if event.step % EVERY == 0:
            checkpoints.save(learner, {"step": event.step})
            if (folder / "stop").exists():
                await line.aclose()
                return


if __name__ == "__main__":
    asyncio.run(operate(Path(sys.argv[1])))
