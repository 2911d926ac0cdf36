"""The whole loop (sample, score, learn, publish): episodes trained a minute, by trivium and by TRL's GRPOTrainer.

    python benchmarks/whole_loop.py --trl-python VENV/bin/python --json     some minutes
    python benchmarks/whole_loop.py --quick                                 ours only, where no interpreter has TRL

The agent is Context-1's without pruning (TRL has no tool that changes the past): questions of 1 to 4 hops in generated
worlds, search, grep and read, 10 turns, 96 tokens a reply, 640 in all. Both sides start from the same nano model, which
was warmed up in this harness (`--model` gives one, else a short warm-up comes first), on the same questions, groups of 8,
one update a step at 1e-6 with CISPO, temperature 1, float32. Rewards are random numbers on both sides, so that every
group teaches and the policy stays where it is.

Ours comes first: two processes of one thread, data parallel; `unguessed` is the same without the engine's guesses
(engine/drafts.py). TRL (benchmarks/whole_loop_trl.py) then makes the same episodes: its model computes and samples every
token, but a logits processor lets it sample only what our side sampled there, and its tools answer what ours did, in no
time. So episodes, turns and tokens are equal but for how a text is cut into tokens between two passages; `strayed` counts
replies that were not on record and were sampled freely. TRL generates as it does without vLLM: transformers' generate on a
left-padded batch of all live episodes. Given to it beyond its defaults: float32 (bfloat16 is slower here), no gradient
checkpointing, replies capped at 96 tokens rather than at a whole completion, a chat template without schemas (our prompts'
tokens), the better of two processes of one thread and one of two, by a probe.

A token is read when it stands in an episode at its end, however often it was computed. The first step of a side is not
counted. `speedup_vs_trl` is of episodes a minute by the wall clock, `speedup_cpu` of episodes a CPU second, which other
load distorts less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import random
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

WAYS = {"2 processes x 1 thread": (2, 1), "1 process x 2 threads": (1, 2)}
SIZE, WARM = 8, 1  # episodes a group; steps that are not counted
PHASES = ("rollout_s", "learn_s", "publish_s", "rest_s", "rollout_cpu_s", "learn_cpu_s")


def recipe(model: str, groups: int, steps: int):
    from trivium.agents.search.recipe import Search
    from trivium.recipe.parts import Parts

    return Parts(Search(model=model, without="pruning", groups=groups, size=SIZE, steps=steps, warmup=max(384, groups * steps)))


# --- our side: `launch` gives each process a rank


def ours(rank, model: str, groups: int, steps: int, folder: str, guesses: bool = True) -> None:
    """The loop of loops.rl on this rank's share; what it took goes into a file of the folder."""
    from trivium.engine import engine

    before, engine._GUESSES = engine._GUESSES, engine._GUESSES * guesses
    found, episodes = asyncio.run(_loop(rank, model, groups, steps))
    Path(folder, f"ours-{rank.number}").write_text(json.dumps(found))
    renderer = recipe(model, groups, steps).renderer
    Path(folder, f"episodes-{rank.number}").write_bytes(pickle.dumps([recorded(e, renderer) for e in episodes]))
    engine._GUESSES = before  # the first rank lives in the process that launched it
    rank.barrier()


async def _loop(rank, model: str, groups: int, steps: int) -> tuple[list[dict[str, float]], list]:
    from trivium import CISPO, Engine, Learner, Network, Plan, rl, rollouts
    from trivium.weights import publish

    parts = recipe(model, groups, steps)
    tasks = questions(parts, groups * steps)
    engine = Engine(Network.load(model), renderer=parts.renderer, slots=groups * SIZE // rank.size, context=parts.window.budget)
    learner = Learner(Network.load(model), CISPO(), 1e-6)
    probe = parts.renderer.opening([{"role": "user", "content": tasks[0].prompt}])
    taken: list[float] = []
    spoken: list = []
    heard: list[float] = []

    def timed_publish(*arguments) -> float:
        began = time.perf_counter()
        gap = publish(*arguments)
        taken.append(time.perf_counter() - began)
        return gap

    source = rollouts(
        parts.harness, tasks, engine, lambda step: chance, Plan(groups, SIZE, steps, sampling=parts.sampling), rank=rank,
    )  # fmt: skip
    rank.barrier()
    marks, made = [_now()], []
    remembered = replace(source, batches=remembering(source, spoken, heard))
    async for event in rl(remembered, learner, engine, probe, publish=timed_publish):
        marks.append(_now())
        made.append(_numbers(event.metrics, marks, taken[-1], heard[-1]))
    return made, spoken


async def remembering(source, spoken: list, heard: list[float]):
    """The source, keeping its episodes and this process' CPU seconds when each batch came."""
    async for groups, scores in source:
        heard.append(time.process_time())
        spoken += [episode for group in groups for episode in group.episodes]
        yield groups, scores


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _numbers(metrics: dict[str, float], marks, publishing: float, heard: float) -> dict[str, float]:
    (before, cpu_before), (after, cpu_after) = marks[-2:]
    wall, rollout, learn = after - before, metrics["wait_seconds"], metrics["learn_seconds"] - publishing
    return {
        "wall_s": wall, "cpu_s": cpu_after - cpu_before, "rollout_s": rollout, "learn_s": learn, "publish_s": publishing,
        "rest_s": wall - rollout - learn - publishing, "rollout_cpu_s": heard - cpu_before,
        "learn_cpu_s": cpu_after - heard, "episodes": metrics["episodes"],
        "sampled": metrics["tokens_trained"], "read": metrics["tokens_seen"], "turns": metrics["turns"],
    }  # fmt: skip


async def chance(episode) -> dict[str, float]:
    """A random reward, and the turns for the table."""
    return {"reward": random.Random(episode.id).random(), "turns": float(episode.agent.turns)}


def questions(parts, count: int) -> list:
    """Unlike questions, their hops mixed: the recipe's own begin with all of one hop."""
    return random.Random(0).sample(parts.train_tasks, count)


# --- TRL's side, in its own interpreter


def recorded(episode, renderer) -> dict:
    """An episode as TRL's side replays it: replies by the text before them, calls with their results."""
    thread, segment = episode.agent, episode.agent.segments[-1]  # without pruning the only one
    said = [span for span in segment.spans if span.kind == "sampled"]
    results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", renderer.decode(segment.tokens), re.DOTALL)
    return {
        "prompt": episode.task.prompt,
        "replies": [(renderer.decode(segment.tokens[: s.start]), list(segment.tokens[s.start : s.stop])) for s in said],
        "calls": [(c.name, c.arguments, result) for c, result in zip(thread.calls, results, strict=False)],
    }


def trl_input(model: str, groups: int, steps: int, episodes: list[dict]) -> dict:
    """All that the other interpreter needs to know, as plain data."""
    parts = recipe(model, groups, steps)
    system = {"role": "system", "content": parts.harness.prompt}
    messages = [[system, {"role": "user", "content": task.prompt}] for task in questions(parts, groups * steps)]
    return {
        "model": model, "groups": groups, "size": SIZE, "prompts": messages, "episodes": episodes,
        "openings": [parts.renderer.opening(message) for message in messages], "budget": parts.window.budget,
        "reply": parts.window.reply, "turns": parts.harness.limits.turns,
    }  # fmt: skip


def theirs(python: str, folder: Path, given: dict, way: str, steps: int) -> list[list[dict[str, float]]]:
    """Each process' numbers, step by step. RuntimeError with its last words where TRL fails."""
    processes, threads = WAYS[way]
    (folder / "given").write_bytes(pickle.dumps({**given, "steps": steps}))
    script = str(Path(__file__).with_name("whole_loop_trl.py"))
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run([python, *launcher, script, str(folder)], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"TRL, {way}: {done.stderr.strip()[-1500:]}")
    return [json.loads((folder / f"theirs-{n}").read_text()) for n in range(processes)]


# --- the measurement


def measure(model: str, groups: int, steps: int, trl_python: str | None) -> dict:
    import torch
    import transformers

    from trivium.fleet import launch

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found, episodes = {"groups": groups, "size": SIZE, "steps": steps}, []
        for side, guesses in (("unguessed", False), ("ours", True)):
            launch(ours, 2, model, groups, steps + WARM, temporary, guesses)
            made = [json.loads((folder / f"ours-{n}").read_text()) for n in range(2)]
            found[side] = total(made, shared=True)
            before, episodes = episodes, [e for n in range(2) for e in pickle.loads((folder / f"episodes-{n}").read_bytes())]
        found["replies_unlike_unguessed"] = unlike(before, episodes)
        if trl_python:
            found |= against(trl_python, folder, trl_input(model, groups, steps + WARM, episodes), steps)
            mine, their = found["ours"], found["trl"]
            found["speedup_vs_trl"] = mine["episodes_per_minute"] / their["episodes_per_minute"]
            found["speedup_sampled"] = mine["sampled_per_minute"] / their["sampled_per_minute"]
            found["speedup_read"] = mine["read_per_minute"] / their["read_per_minute"]
            found["speedup_cpu"] = mine["episodes_per_cpu_minute"] / their["episodes_per_cpu_minute"]
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__}
    return found | {"versions": versions | found.pop("trl_versions", {}), "load": os.getloadavg(), "cores": os.cpu_count()}


def unlike(some: list[dict], others: list[dict]) -> float:
    """The share of replies that differ. They may where a probability lies within a rounding error of the number drawn, and
    from the first update on where a gradient's last bits do."""
    pairs = [
        (a, b) for one, other in zip(some, others, strict=True) for a, b in zip(one["replies"], other["replies"], strict=False)
    ]
    return sum(a[1] != b[1] for a, b in pairs) / len(pairs)


def against(python: str, folder: Path, given: dict, steps: int) -> dict:
    """TRL's better way by a probe of one step, then the whole run in that way."""
    probes = {way: total(theirs(python, folder, given, way, 1 + WARM))["wall_s"] for way in WAYS}
    best = min(probes, key=probes.get)
    numbers = total(theirs(python, folder, given, best, steps + WARM))
    versions = json.loads((folder / "versions").read_text())
    return {"trl": numbers, "trl_way": best, "trl_probe_wall_s": probes, "trl_versions": versions}


def total(every: list[list[dict[str, float]]], shared: bool = False) -> dict[str, float]:
    """Sums over the counted steps: of processes, and the slowest one's wall time. `shared`: counts are of all ranks already."""
    counted = [process[WARM:] for process in every]
    added = lambda name, processes: sum(step[name] for process in processes for step in process)  # noqa: E731
    sums = {name: added(name, counted[:1] if shared else counted) for name in ("episodes", "sampled", "read")}
    turns = sum(step["turns"] for process in counted for step in process) / sum(len(process) for process in counted)
    wall = max(added("wall_s", [process]) for process in counted)
    cpu = added("cpu_s", counted)
    phases = {name: added(name, counted if "cpu" in name else counted[:1]) for name in PHASES}
    strayed = sum(step.get("strayed", 0) for process in counted for step in process)
    per = {f"{name}_per_minute": 60 * value / wall for name, value in sums.items()}
    per["episodes_per_cpu_minute"] = 60 * sums["episodes"] / cpu
    return {**sums, "turns": turns, "strayed": strayed, "wall_s": wall, "cpu_s": cpu, **phases, **per}


def show(found: dict) -> None:
    print(f"replies unlike those without guesses: {found['replies_unlike_unguessed']:.2%}")
    print(f"{found['groups']} groups of {SIZE}, {found['steps']} steps; load {found['load']}; {found['versions']}")
    sides = [side for side in ("unguessed", "ours", "trl") if side in found]
    print(" " * 26 + "".join(f"{side:>12}" for side in sides))
    for name in found["ours"]:
        print(f"{name:26}" + "".join(f"{found[side][name]:12.1f}" for side in sides))
    if "trl" in found:
        print(f"TRL's best way: {found['trl_way']} {found['trl_probe_wall_s']}")
        print("".join(f"{name} {found[name]:.2f}   " for name in found if name.startswith("speedup")))
    else:
        print("TRL skipped: no --trl-python given")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="2 groups, 1 step, a model that is not warm")
    parser.add_argument("--trl-python", help="an interpreter that has TRL and torch")
    parser.add_argument("--model", help="a model folder, warm already")
    parser.add_argument("--groups", type=int, help="a step (16; 2 with --quick)")
    parser.add_argument("--steps", type=int, help="that are counted (3; 1 with --quick)")
    arguments = parser.parse_args()
    groups, steps = arguments.groups or (2 if arguments.quick else 16), arguments.steps or (1 if arguments.quick else 3)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments.model or starting_model(Path(folder), arguments.quick), groups, steps, arguments.trl_python)
    show(found)
    if arguments.json:
        print(json.dumps({"speedup_vs_trl": found.pop("speedup_vs_trl", None)} | found))


def starting_model(folder: Path, quick: bool) -> str:
    from warm import warm

    from trivium.assets import NANO

    return str(NANO) if quick else warm(folder, without="pruning")


if __name__ == "__main__":
    main()
