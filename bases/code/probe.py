"""What the code base can do on projects whose names it has never met: `python -m bases.code.probe FOLDER`.

A turn is right when every token of it is the most likely one, given the right turns before (which equals greedy decoding of
that turn); a task is solved when all of its turns are. Beside it stands the probability of the same at temperature 1.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from bases.code import data
from trivium.tasks.projects import GRADES

BATCH = 4


def scores(net, tokenizer: Tokenizer, count: int, seed: int = 1) -> dict[str, list[float]]:
    """`solved0` ... `solved3`, `edit0` ..., `call0` ...: [greedy, at temperature 1], over `count` held-out tasks of each grade.

    `edit` is the share of right edit turns, `call` that of all turns.
    """
    result: dict[str, list[float]] = {}
    for grade in [grade for grade in GRADES if grade < 4]:
        transcripts = data.coders(random.Random(seed + grade), grade, count, "heldout", errs=0.0, forgets=0.0)
        turns = _turns(net, data.encode(tokenizer, transcripts))
        edits = [turn for task, transcript in zip(turns, transcripts, strict=True) for turn in _edits(task, transcript)]
        result[f"solved{grade}"] = [
            _mean([min(t[0] for t in task) for task in turns]),
            _mean([_product(task) for task in turns]),
        ]
        result[f"edit{grade}"] = [_mean([turn[0] for turn in edits]), _mean([turn[1] for turn in edits])]
        every = [turn for task in turns for turn in task]
        result[f"call{grade}"] = [_mean([turn[0] for turn in every]), _mean([turn[1] for turn in every])]
    return result


def _edits(turns: Sequence[tuple[float, float]], transcript: data.Transcript) -> list[tuple[float, float]]:
    said = [text for text, weight in transcript.texts if weight == 1]
    return [turn for turn, text in zip(turns, said, strict=True) if "edit_file" in text]


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)


def _product(turns: Sequence[tuple[float, float]]) -> float:
    product = 1.0
    for _, probability in turns:
        product *= probability
    return product


@torch.no_grad()
def _turns(net, examples: Sequence[data.Example]) -> list[list[tuple[float, float]]]:
    """For each example its own turns, as (are all tokens the most likely, their probability)."""
    order = sorted(range(len(examples)), key=lambda n: len(examples[n].ids))
    found: list[list[tuple[float, float]]] = [[] for _ in examples]
    for start in range(0, len(order), BATCH):
        group = order[start : start + BATCH]
        width = max(len(examples[n].ids) for n in group)
        ids = torch.tensor([examples[n].ids + [0] * (width - len(examples[n].ids)) for n in group])
        logits = net(input_ids=ids, use_cache=False, attention_mask={"full_attention": None}).logits.float()
        for row, n in enumerate(group):
            found[n] = _of_one(logits[row, :-1], ids[row, 1:], examples[n].weights)
    return found


def _of_one(logits: torch.Tensor, ids: torch.Tensor, weights: Sequence[float]) -> list[tuple[float, float]]:
    right = logits.argmax(-1) == ids
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, None])[:, 0]
    groups: dict[int, list[int]] = defaultdict(list)
    turn = 0
    for at in range(1, len(weights)):
        turn += weights[at] == 1 and weights[at - 1] != 1
        if weights[at] == 1:
            groups[turn].append(at - 1)
    return [(float(right[places].all()), float(logprobs[places].sum().exp())) for places in groups.values()]


def main() -> None:
    from transformers import AutoModelForCausalLM

    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("folder")
    p.add_argument("--count", type=int, default=100)
    args = p.parse_args()
    torch.set_num_threads(1)
    net = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32)
    print(json.dumps(scores(net, Tokenizer.from_file(str(Path(args.folder) / "tokenizer.json")), args.count), indent=1))


if __name__ == "__main__":
    main()
