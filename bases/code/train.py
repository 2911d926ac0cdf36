"""Make the code base from nothing: `python -m bases.code.train --out FOLDER`.

One process, one thread, bfloat16 autocast; Muon on the matrices, AdamW on embeddings and gains, as the nano base is made. The
curriculum follows the step number alone. Killed, it resumes from the last report (`--every` steps) with fresh draws from
(seed, step); resumed with other `--steps` it ends there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F

from bases.code import data, probe, tokenizer
from bases.nano import model
from bases.nano.muon import Muon
from bases.nano.train import export, gentle, rate, save_state

MICRO_TOKENS = 2048
MICROS = 2
LOSSES = {"loss": 1.0, "marks": 0.3, "look": 0.4, "decide": 0.5}
"""What `losses` returns, with weights."""
EARLY = {"drill": 0.1, "code": 0.05, "0": 0.6, "1": 0.25}
MIDDLE = {"drill": 0.08, "code": 0.04, "0": 0.42, "1": 0.32, "2": 0.12, "3": 0.03, "4": 0.01}
LATE = {"drill": 0.06, "code": 0.04, "0": 0.3, "1": 0.3, "2": 0.16, "3": 0.07, "4": 0.05, "5": 0.02}
"""Shares of examples by task; a digit is a grade of generated projects."""


def mixture(progress: float) -> dict[str, float]:
    """Task -> relative share of examples, at `progress` in [0, 1); the first 2% mostly drill."""
    if progress < 0.02:
        return EARLY | {"drill": 4.0}
    return EARLY if progress < 0.12 else MIDDLE if progress < 0.55 else LATE


def micro_batches(tok: Tokenizer, seed: int, step: int, code: Iterator[data.Example], progress: float) -> list:
    """Groups of examples of like length, each about `MICRO_TOKENS` tokens; drawn from (seed, step)."""
    rng = random.Random(seed * 1_000_003 + step)
    shares = mixture(progress)
    counts = Counter(rng.choices(list(shares), list(shares.values()), k=96))
    errs = {"errs": 0.06, "forgets": 0.25}
    transcripts = [t for name in counts if name.isdigit() for t in data.coders(rng, int(name), counts[name], **errs)]
    pool = data.encode(tok, transcripts)
    pool += [data.drill(rng, _drill_vocab(rng), rng.choice((48, 64, 96))) for _ in range(counts["drill"])]
    pool += itertools.islice(code, counts["code"])
    pool.sort(key=lambda e: len(e.ids))
    groups: list[list[data.Example]] = [[]]
    for example in pool:
        if groups[-1] and len(example.ids) * (len(groups[-1]) + 1) > MICRO_TOKENS:
            groups.append([])
        groups[-1].append(example)
    return rng.sample(groups, len(groups))


def _drill_vocab(rng: random.Random) -> tuple[int, int]:
    """Ids to drill on: mostly all of them, sometimes a stretch so narrow that tokens recur in other places."""
    if rng.random() < 0.7:
        return (9, tokenizer.VOCAB)
    start = rng.randrange(9, tokenizer.VOCAB - 60)
    return (start, start + 60)


def losses(net, probes: torch.nn.Linear, seen: dict, group: list[data.Example], rng: random.Random) -> list[torch.Tensor]:
    """[next-token, mark, look, decision] losses of one micro-batch; all but the first may be 0.

    The mark loss reads off the last-but-one layer, at each token of a file, whether its function has to change and, at a line's
    end, whether that line has. The look loss is -log of the attention that the last layer's first key head pays to the token
    that is copied next. The decision loss counts the first token of every copy once more, since it stands among many easy ones.
    """
    width = max(len(e.ids) for e in group)
    ids = torch.tensor([e.ids + [0] * (width - len(e.ids)) for e in group])
    counted = torch.tensor(
        [
            row * width + at
            for row, e in enumerate(group)
            for at in range(1, len(e.ids))
            if e.weights[at] >= 1 or rng.random() < e.weights[at]
        ]
    )
    with torch.autocast("cpu", torch.bfloat16):
        hidden = net.model(input_ids=ids, use_cache=False, attention_mask={"full_attention": None}).last_hidden_state
        logits = net.lm_head(hidden.flatten(0, 1).index_select(0, counted - 1))
        tokens = F.cross_entropy(logits.float(), ids.flatten()[counted])
        decisions = torch.tensor([row * width + at for row, e in enumerate(group) for at in e.decisions], dtype=torch.long)
        decide = torch.zeros(())
        if len(decisions):
            decide = F.cross_entropy(
                net.lm_head(hidden.flatten(0, 1).index_select(0, decisions)).float(), ids.flatten()[decisions + 1]
            )
    return [tokens, _mark_loss(probes, seen["h"], group, width), _look_loss(net, group), decide]


def _mark_loss(probes: torch.nn.Linear, hidden: torch.Tensor, group: list[data.Example], width: int) -> torch.Tensor:
    marks = [(row * width + m.at, m.holds, m.asked) for row, e in enumerate(group) for m in e.marks]
    if not marks:
        return torch.zeros(())
    at, holds, asked = torch.tensor(marks).T
    read = probes(hidden.flatten(0, 1).index_select(0, at).float())
    ends = asked >= 0
    loss = F.binary_cross_entropy_with_logits(read[:, 0], holds.float())
    return loss + F.binary_cross_entropy_with_logits(read[ends, 1], asked[ends].float())


def _look_loss(net, group: list[data.Example]) -> torch.Tensor:
    looks = [(row, start, to) for row, e in enumerate(group) for start, to in e.looks]
    if not looks:
        return torch.zeros(())
    row, start, to = torch.tensor(looks).T
    shares = net.model.layers[-1].self_attn.shares[row, 0, :, start, to].float()
    return -(shares.mean(-1) + 1e-4).log().mean()


class Trainer:
    """The network in training, and how it is stepped, reported on and resumed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        kept = self.out / "export" / "tokenizer.json"
        self.tok = Tokenizer.from_file(str(kept)) if kept.exists() else tokenizer.train()
        config = model.config(args.hidden, args.layers, args.ffn)
        config.vocab_size = tokenizer.VOCAB
        self.net = model.build(config, args.seed)
        self.probes, self.seen = torch.nn.Linear(args.hidden, 2), {}
        self.net.model.layers[-2].register_forward_hook(lambda module, inputs, out: self.seen.update(h=out))
        named = list(self.net.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if p.ndim != 2 or "embed" in name]
        self.optimizers = [
            Muon(matrices, lr=args.muon),
            torch.optim.AdamW([*others, *self.probes.parameters()], lr=args.adam, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.done, self.spent, self.tokens = 0, 0.0, 0
        self.queue: list[list[data.Example]] = []
        self.running: dict[str, float] = {}

    def restore(self) -> None:
        """Go on where a killed run last reported, if there is such a run in `out`."""
        if (path := self.out / "state.pt").exists():
            kept = torch.load(path, weights_only=False)
            self.net.load_state_dict(kept["net"])
            self.probes.load_state_dict(kept["probes"])
            for optimizer, state in zip(self.optimizers, kept["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.done, self.spent, self.tokens = kept["step"], kept["spent"], kept["tokens"]

    def step(self, code: Iterator[data.Example]) -> None:
        """One update from `MICROS` micro-batches."""
        rng = random.Random(self.args.seed * 7_919 + self.done)
        while len(self.queue) < MICROS:
            self.queue += micro_batches(self.tok, self.args.seed, self.done, code, self.done / self.args.steps)
        for _ in range(MICROS):
            group = self.queue.pop()
            parts = losses(self.net, self.probes, self.seen, group, rng)
            (sum(w * part for w, part in zip(LOSSES.values(), parts, strict=True)) / MICROS).backward()
            self.tokens += sum(len(e.ids) for e in group)
            for name, part in zip(LOSSES, parts, strict=True):
                if value := part.item():
                    self.running[name] = 0.98 * self.running.get(name, value) + 0.02 * value
        torch.nn.utils.clip_grad_norm_(itertools.chain(self.net.parameters(), self.probes.parameters()), 1.0)
        for optimizer, lr in zip(self.optimizers, (self.args.muon * gentle(self.done), self.args.adam), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * rate(self.done, self.args.steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.done += 1

    def report(self, seconds: float) -> None:
        """Measure the skills, print and append a line of the curve, save the state, export the model."""
        line = {"step": self.done, "cpu_s": round(self.spent + seconds), "tokens": self.tokens}
        line |= {name: round(value, 3) for name, value in self.running.items()}
        line |= probe.scores(self.net, self.tok, self.args.probe)
        print(json.dumps(line), flush=True)
        with open(self.out / "curve.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        state = {
            "net": self.net.state_dict(),
            "probes": self.probes.state_dict(),
            "step": self.done,
            "optimizers": [o.state_dict() for o in self.optimizers],
            "tokens": self.tokens,
            "spent": self.spent + seconds,
        }
        save_state(self.out / "state.pt", state)
        export(self.net, self.tok, self.out / "export")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    trainer = Trainer(args)
    trainer.restore()
    code = data.code_windows(trainer.tok, random.Random(args.seed + trainer.done), 192)
    begun = time.process_time()
    while trainer.done < args.steps:
        trainer.step(code)
        if trainer.done % args.every == 0 or trainer.done == args.steps:
            trainer.report(time.process_time() - begun)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", required=True, help="folder for the state, the curve and the exported model")
    p.add_argument("--steps", type=int, default=3000)
    p.add_argument("--every", type=int, default=200, help="steps between probes and checkpoints")
    p.add_argument("--probe", type=int, default=24, help="held-out tasks of a grade at each report")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--layers", type=int, default=5)
    p.add_argument("--ffn", type=int, default=384)
    p.add_argument("--muon", type=float, default=0.008)
    p.add_argument("--adam", type=float, default=0.0015)
    run(p.parse_args())


if __name__ == "__main__":
    main()
