"""Learner step: real tokens per second of prefix-sharing, packing, padding, and TRL's GRPO step, on one batch.

    python benchmarks/train_step.py --json --trl-python VENV/bin/python

The batch is Context-1 episodes that the nano model speaks in generated worlds (questions of 1 to 4 hops). A token is real
when it stands in a row and is not padding, however often it is computed. Every side makes one forward, backward and AdamW
update on the same rows, in one thread. Without --trl-python TRL is skipped, and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIDES = ("prefixes", "packed", "padded", "trl")
ROWS_AT_ONCE = 16  # of a padded micro-batch, for padding and for TRL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--quick", action="store_true", help="a few groups, one repetition")
    parser.add_argument("--trl-python", help="an interpreter that has TRL and torch")
    parser.add_argument("--trl-side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trl_side:
        return trl_side(Path(arguments.trl_side))
    found = measure(2 if arguments.quick else 16, 1 if arguments.quick else 3, arguments.trl_python)
    print(f"load {found['load']}, torch {found['torch']}; {found['rows']} rows, {found['tokens']} tokens")
    for side in SIDES:
        if side in found["seconds"]:
            print(f"{side:9} {min(found['seconds'][side]):8.3f} s  {found['tokens_per_second'][side]:9.0f} real tokens/s")
    if arguments.json:
        print(json.dumps(found))


def measure(groups: int, repeats: int, trl_python: str | None) -> dict:
    """Seconds of each side, raw and repeated, and what follows from the fastest of each."""
    import torch

    torch.set_num_threads(1)
    from trivium.agents.search.recipe import NANO
    from trivium.nn import Network
    from trivium.train import CISPO, Learner

    batch = episodes(groups)
    rows = batch_rows(batch)
    seconds = {"prefixes": [], "packed": [], "padded": []}
    for _ in range(repeats + 1):  # the first is thrown away
        for side, share in (("prefixes", True), ("packed", False)):
            learner = Learner(Network.load(NANO), CISPO(), 1e-6, share=share)
            seconds[side].append(timed(lambda learner=learner: learner.learn(batch)))
        seconds["padded"].append(padded(str(NANO), rows))
    seconds = {side: taken[1:] for side, taken in seconds.items()}
    if trl_python:
        seconds["trl"] = ask_trl(trl_python, str(NANO), rows, repeats)
    else:
        print("trl skipped: no --trl-python given")
    tokens = sum(len(row["tokens"]) for row in rows)
    speed = {side: tokens / min(taken) for side, taken in seconds.items()}
    return {
        "speedup_vs_trl": speed["prefixes"] / speed["trl"] if "trl" in speed else None,
        "speedup_vs_padded": speed["prefixes"] / speed["padded"],
        "speedup_vs_packed": speed["prefixes"] / speed["packed"],
        "tokens_per_second": speed, "seconds": seconds, "tokens": tokens, "rows": len(rows),
        "trained": sum(sum(row["mask"]) for row in rows), "load": os.getloadavg(), "torch": torch.__version__,
    }  # fmt: skip


def episodes(groups: int):
    """Groups of eight with unequal rewards, as a step learns from: no side is given a group that teaches nothing."""
    from trivium.agents.search.recipe import Parts, Search
    from trivium.engine import Engine
    from trivium.nn import Network
    from trivium.reward import score
    from trivium.train import Batch, Group

    parts = Parts(Search(groups=16, size=8, warmup=96, steps=4))
    engine = Engine(Network.load(parts.model), renderer=parts.renderer, slots=64, context=parts.window.budget)

    async def attempt() -> list[Group]:
        made = []
        for task in parts.train_tasks[:: 96 // groups][:groups]:
            runs = [parts.harness.run(task, engine, sample=n, id=f"{task.id}/{n}", sampling=parts.sampling) for n in range(8)]
            spoken = await asyncio.gather(*runs)
            rewards = [found["reward"] for found in await score(spoken, parts.scorer(0))]
            made.append(Group(task.id, spoken, rewards))
        return made

    found = asyncio.run(attempt())
    return Batch([group for group in found if max(group.rewards) - min(group.rewards) > 1e-6])


def batch_rows(batch) -> list[dict]:
    """The batch's rows as lists: tokens, mask, and the advantage of their episode."""
    from trivium.train import CISPO
    from trivium.train.batch import lessons

    found, _ = lessons(batch, CISPO(), {"agent"})
    return [
        {"tokens": row.tokens.tolist(), "mask": row.mask.tolist(), "advantage": lesson.advantage}
        for lesson in found
        for row in lesson.rows
    ]


def timed(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def padded(model: str, rows: list[dict]) -> float:
    """transformers with sdpa on right-padded micro-batches, logits of trained tokens only, the fused AdamW."""
    import torch
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, fused=True)
    trained = sum(sum(row["mask"]) for row in rows)

    def step() -> None:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            tokens, seen, mask, advantage = tensors(rows[start : start + ROWS_AT_ONCE])
            hidden = net.model(input_ids=tokens, attention_mask=seen).last_hidden_state[:, :-1][mask[:, 1:]]
            said = net.lm_head(hidden).log_softmax(-1).gather(-1, tokens[:, 1:][mask[:, 1:]][:, None])[:, 0]
            (-(advantage[:, None].expand_as(mask)[:, 1:][mask[:, 1:]] * said).sum() / trained).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return timed(step)


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


def ask_trl(python: str, model: str, rows: list[dict], repeats: int) -> list[float]:
    """TRL's side in its own interpreter, one thread too."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rows").write_bytes(pickle.dumps((model, rows, repeats)))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run([python, __file__, "--trl-side", folder], check=True, stdout=sys.stderr, env=environment)
        return json.loads(Path(folder, "seconds").read_text())


def trl_side(folder: Path) -> None:
    """GRPOTrainer's own loss on the given rows: prompts up to the first trained token, the rest a completion."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    model, rows, repeats = pickle.loads((folder / "rows").read_bytes())
    config = GRPOConfig(
        output_dir=str(folder / "out"), use_cpu=True, bf16=False, report_to=[], loss_type="cispo", epsilon_high=5.0, beta=0.0,
        per_device_train_batch_size=8, num_generations=8, learning_rate=1e-6, gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 8}), processing_class=AutoTokenizer.from_pretrained(model),
    )  # fmt: skip
    net = trainer.model.train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, fused=True)
    batches = [trl_inputs(rows[start : start + ROWS_AT_ONCE]) for start in range(0, len(rows), ROWS_AT_ONCE)]
    trainer.current_gradient_accumulation_steps = len(batches)

    def step() -> None:
        for inputs in batches:
            trainer._compute_loss(net, inputs).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    taken = [timed(step) for _ in range(repeats + 1)][1:]
    (folder / "seconds").write_text(json.dumps(taken))


def trl_inputs(rows: list[dict]) -> dict:
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
    trained = torch.tensor(sum(sum(row["mask"]) for row in rows))
    return {**made, "advantages": torch.tensor([row["advantage"] for row in rows]), "num_items_in_batch": trained}


if __name__ == "__main__":
    main()
