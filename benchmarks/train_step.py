"""Learner step: real tokens per second of prefix sharing, packing, padding and TRL's GRPO step, on the same rows.

    python benchmarks/train_step.py --trl-python VENV/bin/python --json     some minutes
    python benchmarks/train_step.py --quick                                 two groups of a model that is not warm
    python benchmarks/train_step.py --smollm2 ...                           SmolLM2-135M (docs/models.md) in their place

The rows are Context-1 episodes: a nano model that was warmed up in the search agent's harness (`--model` gives one, else a
short warm-up comes first) attempts questions of 1 to 4 hops in generated worlds, 8 times each, with search, grep, read and
prune in a window of 640. A 25M model (fresh weights, fewer rows) learns from the same episodes. A token is real when it
stands in a row and is not padding, however often it is computed. Every side makes one forward, backward and AdamW update
over all rows, in one thread, at the same advantages, CISPO, and weight per token; `grad_norm` shows that they compute one
gradient.

    prefixes  the Learner as it is by default: packed, shared beginnings once
    packed    the Learner with share=False
    padded    transformers, sdpa, right-padded micro-batches, logits of trained tokens only
    trl       GRPOTrainer's own loss on prepared batches: prompt up to the first trained token, the rest completion

SmolLM2 says nothing of use before it has learned the tools: it learns from what the scripted teacher does on such questions,
as a step of the warm-up has it, in two groups (one with --quick).

Every side has the better of float32 and bfloat16 autocast (probed on one group, or on 8 rows). Given to `padded` and TRL
beyond their defaults: rows sorted by length, the best of several micro-batches, the fused AdamW; to TRL also: no gradient
checkpointing, and of its Trainer nothing but the loss (no bookkeeping, no generation).

One thread without input or output waits for nobody: its CPU seconds are its wall time on an idle core. So
`speedup_vs_trl` (the smaller of the models') is of CPU seconds, which other load distorts less; `speedup_vs_trl_wall` stands
beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

SIDES = ("prefixes", "packed", "padded", "trl")
MICROS = (2, 4, 8)  # rows of a padded micro-batch
PROBED = 8  # rows on which the best way is found
SIZE, LR = 8, 0.0  # updates are made and change nothing: a step repeated computes the same gradient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="the nano model on two groups, once")
    parser.add_argument("--trl-python", help="an interpreter that has TRL and torch; without it TRL is skipped")
    parser.add_argument("--smollm2", action="store_true", help="SmolLM2-135M in place of nano and 25M")
    parser.add_argument("--model", help="a nano model folder, warm already")
    parser.add_argument("--groups", type=int, help="questions, eight attempts each (12; 2 with --quick)")
    parser.add_argument("--repeats", type=int, default=3, help="of each side; the fastest counts (1 with --quick)")
    parser.add_argument("--trl-side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trl_side:
        return trl_side(Path(arguments.trl_side))
    with tempfile.TemporaryDirectory() as folder:
        found = compare(arguments, Path(folder))
    show(found)
    if arguments.json:
        print(json.dumps(found))


def compare(arguments, folder: Path) -> dict:
    """Both models' numbers; the smaller speed-ups on top."""
    import torch
    import transformers
    from rollout import model_25m

    from trivium.recipe.bases import base_folder

    torch.set_num_threads(1)
    quick, python = arguments.quick, arguments.trl_python
    repeats = 1 if quick else arguments.repeats
    if arguments.smollm2:
        model = base_folder("smollm2")
        models = {"smollm2": measure(model, taught(model, arguments.groups or (1 if quick else 2)), repeats, python)}
    else:
        model = arguments.model or starting_model(folder, quick)
        batch = episodes(model, arguments.groups or (2 if quick else 12))
        models = {"nano": measure(model, batch, repeats, python)}
    if not (quick or arguments.smollm2):
        few, large = type(batch)(batch.groups[: max(1, len(batch.groups) // 6)]), model_25m(folder / "25m")
        record(large, few)
        models["25M"] = measure(large, few, 1, python)
    first = next(iter(models.values()))
    names = [name for name in first if name.startswith("speedup")]
    least = {name: min(one[name] for one in models.values()) for name in names}
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__}
    versions |= {"trl": first["ways"].get("trl", {}).get("version", "skipped")}
    return {
        "speedup_vs_trl": None,
        **least,
        "models": models,
        "load": os.getloadavg(),
        "cores": os.cpu_count(),
        "versions": versions,
    }


def starting_model(folder: Path, quick: bool) -> str:
    from warm import warm

    from trivium.assets import NANO

    return str(NANO) if quick else warm(folder)


# --- the batch


def episodes(model: str, groups: int):
    """The first `groups` groups of eight with unequal rewards, as a step learns from: equal ones teach nobody."""
    from trivium.agents.search.recipe import Search
    from trivium.engine import Engine
    from trivium.nn import Network
    from trivium.recipe.parts import Parts
    from trivium.train import Batch

    parts = Parts(Search(model=model, groups=groups, size=SIZE, warmup=96, steps=1))
    engine = Engine(Network.load(model), renderer=parts.renderer, slots=8 * SIZE, context=parts.window.budget)
    found: list = []
    tasks = random.Random(0).sample(parts.train_tasks, 96)  # they come with the short ones first
    for start in range(0, 96, 8):
        found += asyncio.run(attempt(parts, engine, tasks[start : start + 8]))
        if len(found) >= groups:
            break
    return Batch(found[:groups])


def taught(model: str, groups: int):
    """Groups of eight attempts of the scripted teacher, as the model would have said them: the last four of each were worth
    nothing, so that all sides have advantages of both signs."""
    from trivium.agents.search.recipe import Search
    from trivium.recipe.parts import Parts
    from trivium.train import Batch, Group

    parts = Parts(Search(model=model, groups=groups, size=SIZE, warmup=96, steps=1, window=1024))
    lessons, tasks = parts.recipe.lessons(), random.Random(0).sample(parts.train_tasks, groups)

    async def attempts(task) -> list:
        runs = [parts.harness.run(task, lessons, sample=n, id=f"{task.id}/{n}", sampling=parts.sampling) for n in range(SIZE)]
        return [replace(each, threads=[replace(each.agent, policy="agent")]) for each in await asyncio.gather(*runs)]

    rewards = [float(n < SIZE // 2) for n in range(SIZE)]
    batch = Batch([Group(task.id, asyncio.run(attempts(task)), rewards) for task in tasks])
    record(model, batch)
    return batch


async def attempt(parts, engine, tasks: list) -> list:
    """The groups of these tasks that teach."""
    from trivium.reward import score
    from trivium.train import Group

    runs = [
        parts.harness.run(task, engine, sample=n, id=f"{task.id}/{n}", sampling=parts.sampling)
        for task in tasks
        for n in range(SIZE)
    ]
    spoken = await asyncio.gather(*runs)
    rewards = [found["reward"] for found in await score(spoken, parts.recipe.scorer(0))]
    cut = [slice(at, at + SIZE) for at in range(0, len(spoken), SIZE)]
    groups = [Group(task.id, spoken[part], rewards[part]) for task, part in zip(tasks, cut, strict=True)]
    return [group for group in groups if max(group.rewards) - min(group.rewards) > 1e-6]


def record(model: str, batch) -> None:
    """Gives sampled tokens the logprobs that `model` has for them, as if it had spoken: then all sides' ratios are 1."""
    from trivium.nn import Network
    from trivium.weights.publish import probe_logprobs

    network = Network.load(model)
    for segment in (s for group in batch.groups for episode in group.episodes for s in episode.agent.segments):
        said = probe_logprobs(network, segment.tokens).tolist()
        for place in (p for span in segment.sampled() for p in range(span.start, span.stop)):
            segment.logprobs[place] = said[place - 1]


def batch_rows(batch) -> list[dict]:
    """The batch's rows as lists, by length: tokens, mask, and the advantage of their episode."""
    from trivium.train import CISPO
    from trivium.train.batch import lessons

    found, _ = lessons(batch, CISPO(), {"agent"})
    made = [
        {"tokens": row.tokens.tolist(), "mask": row.mask.tolist(), "advantage": lesson.advantage}
        for lesson in found
        for row in lesson.rows
    ]
    return sorted(made, key=lambda row: len(row["tokens"]))


# --- the measurement


def measure(model: str, batch, repeats: int, trl_python: str | None) -> dict:
    """Each side's times, raw, and what follows from the fastest of each."""
    from trivium.nn.heap import give_back

    rows = batch_rows(batch)
    times: dict[str, list] = {side: [] for side in SIDES if side != "trl" or trl_python}
    tell(f"{len(rows)} rows")
    padded, ways = padding(model, rows), {}
    ways["padded"] = padded.best()
    for side in ("prefixes", "packed"):
        ways[side] = best_learner(model, type(batch)(batch.groups[:1]), side)
    for _ in range(repeats):
        for side in ("prefixes", "packed"):
            times[side].append(learn(model, batch, side, ways[side]["bfloat16"]))
        times["padded"].append(padded.step(rows))
        tell(", ".join(f"{side} {taken[-1]['cpu_s']:.1f} CPU s" for side, taken in times.items() if taken))
    if trl_python:
        del padded
        give_back()  # a large model's passes: TRL's own need the room
        times["trl"], ways["trl"] = ask_trl(trl_python, model, rows, repeats)
    tokens, trained = sum(len(row["tokens"]) for row in rows), sum(sum(row["mask"]) for row in rows)
    fastest = {side: {key: min(one[key] for one in taken) for key in ("cpu_s", "wall_s")} for side, taken in times.items()}
    found = {"rows": len(rows), "tokens": tokens, "trained": trained, "computed": times["prefixes"][0]["computed"]}
    found["tokens_per_cpu_s"] = {side: tokens / best["cpu_s"] for side, best in fastest.items()}
    found["tokens_per_s"] = {side: tokens / best["wall_s"] for side, best in fastest.items()}
    ours = fastest["prefixes"]
    for side in [side for side in reversed(SIDES[1:]) if side in fastest]:
        found[f"speedup_vs_{side}"] = fastest[side]["cpu_s"] / ours["cpu_s"]
        found[f"speedup_vs_{side}_wall"] = fastest[side]["wall_s"] / ours["wall_s"]
    return found | {"ways": ways, "times": times}


def tell(what: str) -> None:
    """Where a long run is, beside the table."""
    print(what, file=sys.stderr, flush=True)


def best_learner(model: str, batch, side: str) -> dict:
    """Which dtype is the faster for a Learner on a small batch, as `Padded.best` has it."""
    learn(model, batch, side, False)
    found = {bfloat16: learn(model, batch, side, bfloat16)["cpu_s"] for bfloat16 in (False, True)}
    return {"bfloat16": min(found, key=found.get), "probe_cpu_s": {"float32": found[False], "bfloat16": found[True]}}


def learn(model: str, batch, side: str, bfloat16: bool) -> dict[str, float]:
    """One step of a new Learner."""
    from trivium.nn import Network
    from trivium.train import CISPO, Compute, Learner

    learner, done = Learner(Network.load(model), CISPO(), LR, compute=Compute(share=side == "prefixes", autocast=bfloat16)), []
    taken = timed(lambda: done.append(learner.learn(batch).metrics))
    return taken | {"grad_norm": done[0]["grad_norm"], "computed": done[0]["tokens_computed"]}


def timed(work) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


class Padded:
    """A side that works on padded micro-batches: `loss` of (model, rows of a micro-batch, all trained tokens)."""

    def __init__(self, net, loss, bfloat16: bool = False) -> None:
        import torch

        self.net, self.loss, self.bfloat16, self.micro = net, loss, bfloat16, MICROS[0]
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def best(self) -> dict:
        """Settles on the micro-batch and dtype that are fastest on a few rows of all lengths."""
        found = {}
        self.step(self.probe)
        for self.bfloat16 in (False, True):
            for self.micro in MICROS:
                found[self.bfloat16, self.micro] = self.step(self.probe)["cpu_s"]
        self.bfloat16, self.micro = min(found, key=found.get)
        probes = {f"{'bfloat16' if b else 'float32'} x {m}": seconds for (b, m), seconds in found.items()}
        return {"micro": self.micro, "bfloat16": self.bfloat16, "probe_cpu_s": probes}

    def step(self, rows: list[dict]) -> dict[str, float]:
        import torch

        norm = []
        trained = sum(sum(row["mask"]) for row in rows)
        parts = [rows[start : start + self.micro] for start in range(0, len(rows), self.micro)]

        def work() -> None:
            for part in parts:
                with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
                    loss = self.loss(self.net, part, trained)
                loss.backward()
            norm.append(float(torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)))
            self.optimizer.step()
            self.optimizer.zero_grad()

        return timed(work) | {"grad_norm": norm[0]}

    probe: list[dict] = []


def probed(rows: list[dict]) -> list[dict]:
    """A few rows of all lengths, in their order."""
    return rows[:: max(1, len(rows) // PROBED)][:PROBED]


def padding(model: str, rows: list[dict]) -> Padded:
    import torch
    from transformers import AutoModelForCausalLM

    def loss(net, part: list[dict], trained: int):
        tokens, seen, mask, advantage = tensors(part)
        mask = mask[:, 1:]
        hidden = net.model(input_ids=tokens, attention_mask=seen).last_hidden_state[:, :-1][mask]
        said = net.lm_head(hidden).float().log_softmax(-1).gather(-1, tokens[:, 1:][mask][:, None])[:, 0]
        return -(advantage[:, None].expand_as(mask)[mask] * said).sum() / trained

    side = Padded(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa"), loss)
    side.probe = probed(rows)
    return side


def tensors(rows: list[dict]):
    """Rows padded on the right: tokens, which are real, which are trained [B, n]; advantages [B]."""
    import torch

    width = max(len(row["tokens"]) for row in rows)
    pad = lambda values, what: values + [what] * (width - len(values))  # noqa: E731
    return (
        torch.tensor([pad(row["tokens"], 0) for row in rows]),
        torch.tensor([pad([1] * len(row["tokens"]), 0) for row in rows]),
        torch.tensor([pad(row["mask"], False) for row in rows]),
        torch.tensor([row["advantage"] for row in rows], dtype=torch.float32),
    )


# --- TRL's side, in its own interpreter


def ask_trl(python: str, model: str, rows: list[dict], repeats: int) -> tuple[list[dict], dict]:
    """TRL's times and its best way, in one thread too."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "given").write_bytes(pickle.dumps((model, rows, repeats)))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([python, __file__, "--trl-side", folder], capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError(f"TRL: {done.stderr.strip()[-1500:]}")
        return tuple(json.loads(Path(folder, "found").read_text()))


def trl_side(folder: Path) -> None:
    import torch
    import trl

    torch.set_num_threads(1)
    model, rows, repeats = pickle.loads((folder / "given").read_bytes())
    trainer = grpo_trainer(model, folder)
    side = Padded(trainer.model.train(), lambda net, part, trained: trainer._compute_loss(net, trl_inputs(part, trained)))
    side.probe = probed(rows)
    way = side.best() | {"version": trl.__version__}
    (folder / "found").write_text(json.dumps([[side.step(rows) for _ in range(repeats)], way]))


def grpo_trainer(model: str, folder: Path):
    """A GRPOTrainer of `model` with the Learner's loss; AdamW and autocast are `Padded`'s."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=str(folder / "out"), use_cpu=True, bf16=False, report_to=[], loss_type="cispo", epsilon_high=5.0, beta=0.0,
        per_device_train_batch_size=SIZE, num_generations=SIZE, learning_rate=LR, gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * SIZE}), processing_class=trl_tokenizer(model, AutoTokenizer),
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1  # it divides by all trained tokens, whatever the micro-batches
    return trainer


def trl_tokenizer(model: str, auto):
    """The model's own, or for one without (its tokens are given anyway) the nano base's."""
    nano = Path(__file__).parents[1] / "src" / "trivium" / "assets" / "nano"
    return auto.from_pretrained(model if Path(model, "tokenizer.json").exists() else nano)


def trl_inputs(rows: list[dict], trained: int) -> dict:
    """A padded batch as GRPOTrainer makes it: prompts padded on the left, completions on the right."""
    import torch

    cuts = [row["mask"].index(True) for row in rows]
    left, right = max(cuts), max(len(row["tokens"]) - cut for row, cut in zip(rows, cuts, strict=True))
    found = {name: [] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask")}
    for row, cut in zip(rows, cuts, strict=True):
        rest = len(row["tokens"]) - cut
        found["prompt_ids"].append([0] * (left - cut) + row["tokens"][:cut])
        found["prompt_mask"].append([0] * (left - cut) + [1] * cut)
        found["completion_ids"].append(row["tokens"][cut:] + [0] * (right - rest))
        found["completion_mask"].append([1] * rest + [0] * (right - rest))
        found["tool_mask"].append([int(m) for m in row["mask"][cut:]] + [0] * (right - rest))
    made = {name: torch.tensor(values) for name, values in found.items()}
    advantages = torch.tensor([row["advantage"] for row in rows], dtype=torch.float32)
    return {**made, "advantages": advantages, "num_items_in_batch": torch.tensor(trained)}


def show(found: dict) -> None:
    print(f"load {found['load']}, {found['versions']}")
    print(f"{'model':8}{'side':10}{'tokens/cpu s':>14}{'tokens/s':>11}{'cpu s':>9}{'wall s':>9}{'grad norm':>11}  best way")
    for name, one in found["models"].items():
        for side, taken in one["times"].items():
            best = min(taken, key=lambda t: t["cpu_s"])
            way = {key: value for key, value in one["ways"].get(side, {}).items() if key in ("micro", "bfloat16")}
            speeds = f"{one['tokens_per_cpu_s'][side]:14.0f}{one['tokens_per_s'][side]:11.0f}"
            print(f"{name:8}{side:10}{speeds}{best['cpu_s']:9.2f}{best['wall_s']:9.2f}{best['grad_norm']:11.5f}  {way or ''}")
        print(f"{name:8}{one['rows']} rows, {one['tokens']} tokens ({one['computed']:.0f} computed with prefixes), ", end="")
        print(f"{one['trained']} trained; ours against", end=" ")
        print(", ".join(f"{side} {one[f'speedup_vs_{side}']:.2f}x" for side in reversed(SIDES) if f"speedup_vs_{side}" in one))
    if found["speedup_vs_trl"] is None:
        print("TRL skipped: no --trl-python given")


if __name__ == "__main__":
    main()
