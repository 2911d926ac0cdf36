"""Throughput of the loop at a lag of 0, 1 and 4 versions: `rollouts` and `rl` as they run, on a simulated clock.

    python benchmarks/async_loop.py --json            the simulated table, and real wall-clock of a nano model beside it
    python benchmarks/async_loop.py --json --quick    the simulated table alone, in seconds
    python benchmarks/async_loop.py --json --learn    also learning curves at each lag (three runs of minutes per seed)

128 slots, batches of 16 groups of 8, episodes log-normal with median 1 s and 95th percentile 5 s, a learner's step of 2 s,
publication 0.1 s. The last line is one JSON object; `speedup_lag1` is episodes learned from per second over those at lag 0.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import time

from trivium.clock import SimulatedClock
from trivium.eval import mean_interval
from trivium.loops import Pace, Plan, rl, rollouts
from trivium.loops.simulated import SimulatedEngine, SimulatedHarness, SimulatedLearner, log_normal, publishing
from trivium.trace import Task

LAGS = (0, 1, 4)
SLOTS, GROUPS, SIZE, LEARN, SYNC = 128, 16, 8, 2.0, 0.1
MEDIAN, P95 = 1.0, 5.0
COUNTS = ("episodes_overtaken", "episodes_dropped", "episodes_lost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--quick", action="store_true", help="the simulated table alone, of fewer steps")
    parser.add_argument("--steps", type=int, default=600, help="simulated steps of each row")
    parser.add_argument("--real-steps", type=int, default=8, help="real steps of each row")
    parser.add_argument("--learn", action="store_true", help="also learning curves")
    parser.add_argument("--learn-steps", type=int, default=24, help="steps of a learning curve")
    parser.add_argument("--seeds", type=int, default=1, help="learning curves per lag")
    arguments = parser.parse_args()
    found = {"simulated": simulated(100 if arguments.quick else arguments.steps), **machine()}
    found["speedup_lag1"] = found["simulated"]["1"]["speedup"]
    print(table(found["simulated"]))
    if not arguments.quick:
        found["real"] = {str(lag): real(lag, arguments.real_steps) for lag in LAGS}
        print(real_table(found["real"]))
    if arguments.learn:
        found["learning"] = learning(arguments.learn_steps, arguments.seeds)
        print(learning_table(found["learning"]))
    found["load_after"] = os.getloadavg()
    if arguments.json:
        print(json.dumps(found))


def machine() -> dict:
    versions = {name: importlib.metadata.version(name) for name in ("trivium", "torch", "transformers")}
    return {"load": os.getloadavg(), "cores": os.cpu_count(), "python": platform.python_version(), "versions": versions}


# Simulated ------------------------------------------------------------------------------------------------------------


def simulated(steps: int) -> dict[str, dict[str, float]]:
    """A row for each lag, and the ideal: always busy slots or an always busy learner, whichever is slower."""
    rows = {str(lag): _operate(lag, steps) for lag in LAGS}
    # in sampled, not expected, seconds: the same episodes as in the rows
    per_step = max(rows["0"]["busy_seconds"] / SLOTS / steps, LEARN + SYNC)
    rows["ideal"] = {"episodes_per_second": GROUPS * SIZE / per_step}
    for row in rows.values():
        row["speedup"] = row["episodes_per_second"] / rows["0"]["episodes_per_second"]
    return rows


def _operate(lag: int, steps: int) -> dict[str, float]:
    clock, began = SimulatedClock(), time.perf_counter()
    engine = SimulatedEngine(log_normal(MEDIAN, P95), slots=SLOTS, tokens=1)
    learner = SimulatedLearner(lambda version: LEARN)
    events = clock.run(_events(engine, learner, lag, steps))
    learned = sum(map(len, learner.learned))
    counts = {name: sum(event.metrics[name] for event in events) for name in COUNTS}
    assert learned + sum(counts.values()) == steps * GROUPS * SIZE, "an episode was lost or learned twice"
    return {
        "seconds": clock.now(), "episodes": learned, "episodes_per_second": learned / clock.now(), "steps": steps, **counts,
        "slots_busy": engine.busy / SLOTS / clock.now(), "learner_busy": steps * LEARN / clock.now(),
        "staleness_mean": sum(learner.staleness) / steps, "staleness_max": max(learner.staleness),
        "busy_seconds": engine.busy, "wall_seconds": time.perf_counter() - began,
    }  # fmt: skip


async def _events(engine: SimulatedEngine, learner: SimulatedLearner, lag: int, steps: int) -> list:
    tasks = [Task(f"t{number}", "?") for number in range(GROUPS * 4)]
    source = rollouts(SimulatedHarness(), tasks, engine, lambda step: _judge, Plan(GROUPS, SIZE, steps), pace=Pace(max_lag=lag))
    return [event async for event in rl(source, learner, engine, (), publish=publishing(SYNC))]


async def _judge(episode) -> dict[str, float]:
    return {"reward": float(episode.sample)}


def table(rows: dict[str, dict[str, float]]) -> str:
    said = f"episodes log-normal (median {MEDIAN:g} s, p95 {P95:g} s), step {LEARN:g} s, sync {SYNC:g} s"
    names = ("lag", "episodes/s", "speedup", "slots busy", "learner busy", "overtaken", "staleness")
    lines = [f"\n{SLOTS} slots, batch {GROUPS} x {SIZE}, {said}: simulated", _line(names)]
    for lag, row in rows.items():
        cells = [lag, f"{row['episodes_per_second']:.2f}", f"{row['speedup']:.2f}"]
        if lag != "ideal":
            overtaken = row["episodes_overtaken"] / row["steps"] / GROUPS / SIZE
            cells += [f"{row['slots_busy']:.0%}", f"{row['learner_busy']:.0%}", f"{overtaken:.2%}", str(row["staleness_max"])]
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells) -> str:
    return "".join(f"{cell:>13}" for cell in cells)


# Real -----------------------------------------------------------------------------------------------------------------


def real(lag: int, steps: int) -> dict[str, float]:
    """The nano model on a generated world in one process: the engine on the event loop, the learner in its thread."""
    import torch

    from trivium import CISPO, Engine, Learner, Network
    from trivium.agents.search.recipe import Search
    from trivium.assets import NANO
    from trivium.recipe.parts import Parts

    torch.set_num_threads(1)
    parts = Parts(Search(groups=4, size=8, steps=steps, warmup=1))
    engine = Engine(NANO, context=parts.window.budget, slots=32)
    learner = Learner(Network.load(NANO), CISPO(), lr=1e-5)

    async def operate() -> list:
        source = rollouts(
            parts.harness, parts.train_tasks, engine, parts.recipe.scorer, Plan(4, 8, steps, sampling=parts.sampling),
            pace=Pace(max_lag=lag),
        )  # fmt: skip
        probe = engine.renderer.encode("a few words whose logprobs must agree after every update")
        return [event async for event in rl(source, learner, engine, probe)]

    _ = parts.harness, [parts.recipe._corpora, parts.train_tasks]  # made before the clock starts
    load, began = os.getloadavg(), time.perf_counter()
    events = asyncio.run(operate())
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds, "episodes": sum(event.metrics["episodes"] for event in events), "load": load,
        "attempts": 32 * steps, "overtaken": sum(event.metrics["episodes_overtaken"] for event in events),
        "attempts_per_second": 32 * steps / seconds,
        "tokens_trained": sum(event.metrics["tokens_trained"] for event in events),
        "learn_seconds": sum(event.metrics["learn_seconds"] for event in events),
        "wait_seconds": sum(event.metrics["wait_seconds"] for event in events),
        "staleness_mean": sum(event.metrics.get("staleness", 0.0) for event in events) / steps,
    }  # fmt: skip


def real_table(rows: dict[str, dict[str, float]]) -> str:
    names = ("lag", "attempts/s", "speedup", "learning s", "waiting s", "overtaken", "staleness", "load")
    lines = ["\nnano model, 4 x 8 episodes a step, one process: real seconds", _line(names)]
    for lag, row in rows.items():
        numbers = (row["attempts_per_second"], row["attempts_per_second"] / rows["0"]["attempts_per_second"])
        numbers += (row["learn_seconds"], row["wait_seconds"], row["overtaken"], row["staleness_mean"], row["load"][0])
        lines.append(_line([lag, *(f"{number:.2f}" for number in numbers)]))
    return "\n".join(lines)


# Learning -------------------------------------------------------------------------------------------------------------


def learning(steps: int, seeds: int) -> dict:
    """Curves of RL from one warm-up, and held-out rewards after it; every lag less lag 0, paired task by task."""
    runs = [_learn(lag, seed, steps) for seed in range(seeds) for lag in LAGS]
    made: dict = {"steps": steps, "runs": runs}
    for lag in LAGS:
        mine = [run for run in runs if run["lag"] == lag]
        base = [run for run in runs if run["lag"] == 0]
        after = [reward for run in mine for reward in run["heldout"]]
        less = [
            a - b for run, zero in zip(mine, base, strict=True) for a, b in zip(run["heldout"], zero["heldout"], strict=True)
        ]
        made[str(lag)] = {"heldout": list(mean_interval(after)), "minus_lag0": list(mean_interval(less))}
    return made


_WARM: dict = {}


def _learn(lag: int, seed: int, steps: int) -> dict:
    import torch

    from trivium import AdamW, Engine, Learner, Network, evaluate
    from trivium.agents.search.recipe import Search
    from trivium.assets import NANO
    from trivium.recipe.parts import Parts

    torch.set_num_threads(1)
    parts = Parts(Search(seed=seed, steps=steps, warmup=800, eval_tasks=128, groups=8))
    if seed not in _WARM:
        _WARM[seed] = asyncio.run(_warm_up(parts))
    networks = [Network.load(NANO), Network.load(NANO)]
    for network in networks:
        network.load_state({name: tensor.clone() for name, tensor in _WARM[seed].items()})
    engine = Engine(networks[0], renderer=parts.renderer, context=parts.window.budget, slots=64)
    learner = Learner(networks[1], parts.recipe.loss(), 4e-4, optimizer=AdamW(2, lambda v: min(1.0, (v + 1) / 5)))

    async def operate():
        source = rollouts(
            parts.harness, parts.rl_tasks, engine, parts.recipe.scorer, Plan(8, 8, steps, seed=seed, sampling=parts.sampling),
            pace=Pace(max_lag=lag),
        )  # fmt: skip
        probe = parts.renderer.encode("a few words whose logprobs must agree after every update")
        events = [event async for event in rl(source, learner, engine, probe)]
        result, _ = await evaluate(
            parts.harness, parts.heldout_tasks, engine, parts.recipe.judge(), sampling=parts.sampling, seed=seed + 1,
            prefix="heldout",
        )  # fmt: skip
        return events, result

    began = time.perf_counter()
    events, result = asyncio.run(operate())
    return {
        "lag": lag, "seed": seed, "seconds": time.perf_counter() - began,
        "curve": [event.metrics["reward"] for event in events],
        "staleness": [event.metrics.get("staleness") for event in events], "heldout": list(result.scores["reward"]),
        "ratio_max": max(event.metrics.get("ratio_max", 0.0) for event in events),
        "dropped": sum(event.metrics["episodes_dropped"] for event in events),
        "overtaken": sum(event.metrics["episodes_overtaken"] for event in events),
    }  # fmt: skip


async def _warm_up(parts, steps: int = 60) -> dict:
    """The recipe's warm-up, shorter: the weights that every lag begins with."""
    from trivium import SFT, AdamW, Learner, Network, sft
    from trivium.assets import NANO
    from trivium.reward import score

    episodes = await asyncio.gather(
        *(parts.harness.run(task, parts.teacher, id=f"teacher/{task.id}/0") for task in parts.train_tasks[:800])
    )
    kept = parts.recipe.select(episodes, await score(episodes, parts.recipe.scorer(0)))
    learner = Learner(
        Network.load(NANO),
        SFT(),
        1e-3,
        policies={parts.teacher.name},
        optimizer=AdamW(schedule=lambda v: max(0.1, 1 - v / steps)),
    )
    async for _ in sft(learner, kept, steps=steps, size=32, seed=parts.recipe.seed):
        pass
    return {name: tensor.clone() for name, tensor in learner.network.state().items()}


def learning_table(found: dict) -> str:
    lines = [f"\nheld-out reward after {found['steps']} steps of RL from one warm-up, 95% intervals"]
    lines.append(f"{'lag':>6} {'reward':>24} {'less lag 0, paired':>28} {'first and last quarter of the curve':>38}")
    for lag in LAGS:
        row, curves = found[str(lag)], [run["curve"] for run in found["runs"] if run["lag"] == lag]
        part = max(1, found["steps"] // 4)
        begin, end = ([sum(c[cut]) / part for c in curves] for cut in (slice(0, part), slice(-part, None)))
        reward, less = ("{:.3f} [{:.3f}, {:.3f}]".format(*row[name]) for name in ("heldout", "minus_lag0"))
        lines.append(f"{lag:>6} {reward:>24} {less:>28} {sum(begin) / len(begin):>18.3f} -> {sum(end) / len(end):.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
