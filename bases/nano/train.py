"""Make the nano base from nothing, `python -m bases.nano.train --out FOLDER`, or with `--reading` from it one that reads pages.

One process, one thread, bfloat16 autocast. Muon on the matrices, AdamW on embeddings and gains. The curriculum follows the
step number alone. Killed, it resumes from the last report (`--every` steps) with fresh draws from (seed, step).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from transformers import Qwen3ForCausalLM

from bases.nano import data, model, probe, tokenizer
from bases.nano.muon import Muon
from bases.nano.pages import Shelf
from trivium.assets import NANO

MICRO_TOKENS = 2048
MICROS = 2
WARMUP = 30
LOSSES = {"loss": 1.0, "gold": 0.5, "object": 0.15, "look": 0.3, "read": 0.5}
"""What `losses` returns, with weights."""


EARLY = {"drill": 0.08, "text": 0.08, "names": 0.06, "told": 0.04, "query1": 0.1, "query2": 0.08, "query3": 0.04, "walk1": 0.5}
MIDDLE = EARLY | {"walk1": 0.3, "walk2": 0.2}
LATE = EARLY | {"walk1": 0.14, "walk2": 0.26, "walk3": 0.14, "walk4": 0.05, "query3": 0.08}
"""Shares of examples by task: first one hop, then two, then the plan of several, which takes longest."""
READING = {"pages": 1.6} | {name: share for name, share in LATE.items() if name not in ("drill", "text")}
"""Mostly pages, and the rest so that nothing is forgotten."""


def mixture(progress: float, reading: bool = False) -> dict[str, float]:
    """Task -> relative share of examples, at `progress` in [0, 1); the first 2% mostly drill."""
    if reading:
        return READING
    if progress < 0.02:
        return EARLY | {"drill": 0.8}
    return EARLY if progress < 0.05 else MIDDLE if progress < 0.3 else LATE


def widest(progress: float) -> int:
    """The most results per search at `progress`."""
    return 4 if progress < 0.2 else 6 if progress < 0.35 else 8


def pages_in_view(progress: float) -> int:
    """The most pages of a question at `progress`."""
    return 3 if progress < 0.1 else 4 if progress < 0.25 else 6


def examples(rng: random.Random, counts: Counter, progress: float) -> list[list[data.Piece]]:
    """The examples of all tasks that are made of text, over one world; `counts` says how many of each."""
    library = data.Library(rng, "train", rng.choice((150, 250, 400)))
    made = [data.name_list(rng, "train") for _ in range(counts["names"])]
    made += [data.told_tool(rng, "train") for _ in range(counts["told"])]
    for hops in (1, 2, 3, 4):
        asked = library.questions(hops, counts[f"query{hops}"])
        made += [data.first_query(question, links, rng.random() < 0.3) for question, links in asked]
        for question, links in library.questions(hops, counts[f"walk{hops}"], 0.15 if hops == 2 else 0.0):
            results = rng.randrange(2, widest(progress) + 1) if hops == 1 else rng.choice((1, 1, 2, 3, 4))
            first = 1 if rng.random() < 0.8 else rng.randrange(2, 16)  # two-digit handles too
            made.append(data.trajectory(library, question, links, results, rng.random() < 0.3, first=first))
    return made


def micro_batches(tok: Tokenizer, seed: int, step: int, streams: dict[str, Iterator[data.Example]], progress: float) -> list:
    """`MICROS` groups of examples of like length, each about `MICRO_TOKENS` tokens; drawn from (seed, step), and from
    `streams` by the name of their task."""
    rng = random.Random(seed * 1_000_003 + step)
    shares = mixture(progress, "pages" in streams)
    counts = Counter(rng.choices(list(shares), list(shares.values()), k=64))
    pool = data.encode(tok, examples(rng, counts, 1.0 if "pages" in streams else progress))
    length = rng.choice((48, 64, 96))
    pool += [data.drill(rng, _drill_vocab(rng), length) for _ in range(counts["drill"])]
    for name, stream in streams.items():
        pool += itertools.islice(stream, counts[name])
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
        return (9, model.config().vocab_size)
    start = rng.randrange(9, 4000)
    return (start, start + 60)


class LineProbes(torch.nn.Module):
    """Two readings of the last-but-one layer at a result line's last digit; they shape it and are then thrown away.

    `gold` says whether the line states what was asked, `object` turns to the embedding of its object's first token.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gold = torch.nn.Linear(hidden, 1)
        self.object = torch.nn.Linear(hidden, hidden, bias=False)


def losses(net, probes: LineProbes, seen: dict, group: list[data.Example], rng: random.Random) -> list[torch.Tensor]:
    """[next-token, gold-line, line-object, look, read] losses of one micro-batch; all but the first may be 0.

    The look loss is -log of the attention that the last layer's key head (0 for handles, 1 for names) pays to the
    right line's handle: the probes show that layer 3 knows the line long before the last layer learns to read it there.
    The read loss counts decisions once more (a handle, a name, a keyword), since each stands among many easy tokens.
    A micro-batch without line marks has the first loss alone (one in eleven late in training, with a twentieth of the looks):
    the shipped base was made so.
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
    marks = [(row * width + m.at, m) for row, e in enumerate(group) for m in e.marks]
    with torch.autocast("cpu", torch.bfloat16):
        hidden = net.model(input_ids=ids, use_cache=False, attention_mask={"full_attention": None}).last_hidden_state
        logits = net.lm_head(hidden.flatten(0, 1).index_select(0, counted - 1))
        tokens = F.cross_entropy(logits.float(), ids.flatten()[counted])
        if not marks:
            return [tokens, *torch.zeros(4)]
        at = seen["h"].flatten(0, 1).index_select(0, torch.tensor([place for place, _ in marks]))
        gold = torch.tensor([float(m.gold) for _, m in marks])
        objects = net.lm_head(F.rms_norm(probes.object(at), (at.shape[-1],)))
    looks = [(row, kind, start, to) for row, e in enumerate(group) for start, to, kind in e.looks]
    look = read = torch.zeros(())
    if looks:
        row, kind, start, to = torch.tensor(looks).T
        shares = net.model.layers[-1].self_attn.shares[row, kind.clamp(min=0), :, start, to].float()
        look = -((shares.mean(-1) + 1e-4).log() * (kind >= 0)).sum() / (kind >= 0).sum().clamp(min=1)
        with torch.autocast("cpu", torch.bfloat16):
            said = net.lm_head(hidden[row, start])
        read = F.cross_entropy(said.float(), ids[row, start + 1])
    return [
        tokens,
        F.binary_cross_entropy_with_logits(probes.gold(at.float()).squeeze(-1), gold),
        F.cross_entropy(objects.float(), torch.tensor([m.object for _, m in marks]), ignore_index=-1, reduction="sum")
        / len(marks),
        look,
        read,
    ]


def rate(step: int, steps: int) -> float:
    """Warm-up over `WARMUP` steps, linear decay to 2% over the last half."""
    return min(1.0, (step + 1) / WARMUP, max(0.02, 2 * (1 - step / steps)))


def gentle(step: int) -> float:
    """Muon's share of its rate: half until copying stands at step 600, all from step 1200 (the laid-in heads wear off)."""
    return min(1.0, max(0.5, step / 1200))


def save_state(path: Path, state: dict) -> None:
    torch.save(state, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def export(net, tok: Tokenizer, folder: Path) -> None:
    """The folder that transformers, vLLM and renderers load: bfloat16 weights, tokenizer, configs."""
    tokenizer.save(tok, folder)
    copy = model.build(net.config, 0, laid_in=False)
    copy.load_state_dict(net.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]  # where readers older than transformers 5 look
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "temperature": 1.0, "eos_token_id": [2, 0], "pad_token_id": 0}, indent=2) + "\n"
    )


class Trainer:
    """The network in training, and how it is stepped, reported on and resumed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        frozen = args.tokenizer or (NANO / "tokenizer.json" if args.reading else "")
        self.tok = Tokenizer.from_file(str(frozen)) if frozen else tokenizer.train()
        self.net = model.build(model.config(args.hidden, args.layers, args.ffn), args.seed, not args.plain_init)
        if args.reading:
            self.net.load_state_dict(Qwen3ForCausalLM.from_pretrained(NANO, dtype=torch.float32).state_dict())
        self.probes, self.seen = LineProbes(args.hidden), {}
        self.net.model.layers[-2].register_forward_hook(lambda module, inputs, out: self.seen.update(h=out))
        named = list(self.net.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named if p.ndim != 2 or "embed" in name]
        groups = [{"params": others}, {"params": self.probes.parameters()}]
        self.optimizers = [
            Muon(matrices, lr=args.muon),
            torch.optim.AdamW(groups, lr=args.adam, betas=(0.9, 0.95), weight_decay=0.0),
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

    @property
    def progress(self) -> float:
        return self.done / self.args.steps

    def streams(self) -> dict[str, Iterator[data.Example]]:
        """Endless examples by task, those that no world is needed for."""
        rng = random.Random(self.args.seed + self.done)
        if not self.args.reading:
            return {"text": data.text_windows(self.tok, rng, 192)}
        walks = Shelf(self.args.seed, "train").examples(rng, lambda: pages_in_view(self.progress))
        return {"pages": (data.encode(self.tok, [walk])[0] for walk in walks)}

    def step(self, streams: dict[str, Iterator[data.Example]]) -> None:
        """One update from `MICROS` micro-batches."""
        rng = random.Random(self.args.seed * 7_919 + self.done)
        while len(self.queue) < MICROS:
            self.queue += micro_batches(self.tok, self.args.seed, self.done, streams, self.progress)
        for _ in range(MICROS):
            group = self.queue.pop()
            parts = losses(self.net, self.probes, self.seen, group, rng)
            (sum(w * part for w, part in zip(LOSSES.values(), parts, strict=True)) / MICROS).backward()
            self.tokens += sum(len(e.ids) for e in group)
            for name, part in zip(LOSSES, parts, strict=True):
                if value := part.item():
                    self.running[name] = 0.98 * self.running.get(name, value) + 0.02 * value
        torch.nn.utils.clip_grad_norm_(itertools.chain(self.net.parameters(), self.probes.parameters()), 1.0)
        muon = self.args.muon * (1 if self.args.reading else gentle(self.done))
        for optimizer, lr in zip(self.optimizers, (muon, self.args.adam), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * rate(self.done, self.args.steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.done += 1

    def report(self, seconds: float) -> None:
        """Measure the skills, print and append a line of the curve, save the state, export the model."""
        line = {"step": self.done, "cpu_s": round(self.spent + seconds), "tokens": self.tokens}
        line |= {name: round(value, 3) for name, value in self.running.items()}
        skills = probe.all_skills(self.net, self.tok)
        line |= {name: [round(s.greedy, 2), round(s.sampled, 2)] for name, s in skills.items()}
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
    streams = trainer.streams()
    begun = time.process_time()
    while trainer.done < args.steps:
        trainer.step(streams)
        if trainer.done % args.every == 0 or trainer.done == args.steps:
            trainer.report(time.process_time() - begun)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", required=True, help="folder for the state, the curve and the exported model")
    p.add_argument("--tokenizer", help="a tokenizer.json to use instead of training one")
    p.add_argument("--steps", type=int, default=5000)
    p.add_argument("--every", type=int, default=250, help="steps between probes and checkpoints")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--ffn", type=int, default=384)
    p.add_argument("--muon", type=float, default=0.008)
    p.add_argument("--adam", type=float, default=0.0015)
    p.add_argument("--reading", action="store_true", help="go on from the shipped base, with pages to read")
    p.add_argument("--plain-init", action="store_true", help="start from random attention (for comparison)")
    run(p.parse_args())


if __name__ == "__main__":
    main()
