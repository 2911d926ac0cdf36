"""The loop in bad weather: engine, learner and subscriber killed at random. Two hours of simulated time in seconds, and real
minutes for `make slow` (SOAK_MINUTES, 10). Nothing hangs, no episode is lost or learned twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from tests.loops.house import TASKS, judge
from trivium.clock import SimulatedClock
from trivium.errors import PolicyError, TriviumError
from trivium.loops import Pace, Plan, rl, rollouts
from trivium.loops.simulated import SimulatedEngine, SimulatedHarness, SimulatedLearner, log_normal
from trivium.trace import Store

GROUPS, SIZE, EVERY = 4, 4, 10


class Weather:
    """Two hours. The engine dies every few minutes and returns, sometimes with old weights; the subscriber does not answer or
    hangs; the learner's process dies and goes on from its last checkpoint, made every EVERY steps."""

    def __init__(self, seed: int, max_lag: int, store: Store) -> None:
        self.rng, self.max_lag, self.store = random.Random(seed), max_lag, store
        self.clock = SimulatedClock()
        self.engine = SimulatedEngine(log_normal(1, 5), slots=GROUPS * SIZE)
        self.learner = SimulatedLearner(lambda version: 2.0)
        self.events: list = []  # of the lineage that the last checkpoint leads to
        self.kills: Counter = Counter()

    async def operate(self, seconds: float) -> None:
        others = [asyncio.create_task(self._kill_engine())]
        while self.clock.now() < seconds:
            line = asyncio.create_task(self._line())
            done, _ = await asyncio.wait({line}, timeout=min(self.rng.expovariate(1 / 300), seconds - self.clock.now() + 1e-6))
            if done and line.exception():
                assert isinstance(line.exception(), PolicyError | TriviumError), line.exception()
                self.kills[f"ended: {str(line.exception())[:20]}"] += 1
            else:
                self.kills["learner"] += 1
                line.cancel()
                await asyncio.wait({line})
            assert not self.engine._running  # a dead line leaves nothing behind
        for other in others:
            other.cancel()

    async def _line(self) -> None:
        """From the last checkpoint on, with whatever weights the engine has until it is given others."""
        first = len(self.events) // EVERY * EVERY
        del self.events[first:]
        self.learner = SimulatedLearner(lambda version: 2.0, version=first, learned=self.learner.learned[:first])
        self.engine.version = first
        source = rollouts(
            SimulatedHarness(lambda task, sample: 1 + sample % 3), TASKS, self.engine, lambda step: judge,
            Plan(GROUPS, SIZE, 100_000, first), pace=Pace(self.max_lag, seconds=300), store=self.store,
        )  # fmt: skip
        line = rl(source, self.learner, self.engine, (), publish=self._publish, publish_seconds=20, deadline=1500)
        try:
            async for event in line:
                self.events.append(event)
        finally:
            await line.aclose()

    async def _publish(self, network, version, engine, probe) -> float:
        luck = self.rng.random()
        self.kills["subscriber"] += luck < 0.1
        await asyncio.sleep(1000 if luck < 0.05 else 0.1)
        if luck < 0.1:
            raise ConnectionError("the subscriber is dead")
        engine.load(None, version)
        return 0.0

    async def _kill_engine(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / 120))
            self.kills["engine"] += 1
            self.engine.die()
            await asyncio.sleep(self.rng.choice([0.5, 5, 30, 90]))
            self.engine.rise(self.rng.choice([None, max(0, self.engine.version - 2)]))


@pytest.mark.parametrize("max_lag", [1, *(pytest.param(lag, marks=pytest.mark.slow) for lag in (0, 4))])
def test_two_hours_of_kills_in_simulated_time(tmp_path, max_lag):
    weather = Weather(max_lag, max_lag, Store(tmp_path / "episodes.db"))
    weather.clock.run(weather.operate(7200))
    assert weather.clock.now() >= 7200
    assert min(weather.kills[who] for who in ("engine", "learner", "subscriber")) >= 10
    learned = weather.learner.learned[: len(weather.events)]
    assert len(learned) > 150, "so many kills, and hardly a step"
    account(learned, [event.metrics for event in weather.events])


def account(learned: list[list[str]], metrics: list[dict], size: int = GROUPS * SIZE) -> None:
    """Every attempt of every step was learned from in its step, once, or counted as what became of it."""
    every = [id for ids in learned for id in ids]
    assert len(every) == len(set(every)), "learned twice"
    for step, (ids, numbers) in enumerate(zip(learned, metrics, strict=True)):
        assert all(id.startswith(f"rl/{step}/") for id in ids)
        gone = sum(numbers[f"episodes_{name}"] for name in ("dropped", "overtaken", "lost", "unscored"))
        assert len(ids) + gone == size, f"step {step}: {len(ids)} learned, {gone} counted as gone"


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_real_minutes_of_kills(tmp_path):
    """tests/loops/operate.py in a process of its own: its engine and its publication break at random, it is killed."""
    minutes, rng = float(os.environ.get("SOAK_MINUTES", "10")), random.Random(0)
    end, kills = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end:
        process = _begin(tmp_path)
        time.sleep(min(rng.uniform(10, 40), max(1.0, end - time.monotonic())))
        assert process.poll() is None, f"ended by itself: {(tmp_path / 'said').read_text()[-2000:]}"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    (tmp_path / "stop").touch()
    assert _begin(tmp_path).wait(timeout=300) == 0, (tmp_path / "said").read_text()[-2000:]
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    account([line["learned"] for line in lines], [line["metrics"] for line in lines], size=8)
    total = Counter()
    for line in lines:
        total.update({name: value for name, value in line["metrics"].items() if value})
    counts = {name: int(value) for name, value in total.items() if name.startswith("episodes") or name == "publish_failed"}
    print(f"\n{minutes:g} minutes, {kills} kills, {len(lines)} steps: {counts}")
    assert total["episodes_rerun"] and total["publish_failed"] and len(lines) > kills


def _begin(folder) -> subprocess.Popen:
    with open(folder / "said", "w") as said:
        return subprocess.Popen([sys.executable, "-m", "tests.loops.operate", str(folder)], stdout=said, stderr=said)
