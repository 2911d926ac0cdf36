"""What the base can do, on held-out names: `python -m bases.nano.probe FOLDER` prints the table of an exported model.

Every score is the exact match of one span under teacher forcing, which equals greedy decoding for spans that must match
exactly; the score at temperature 1 is the exact probability of the span, so it carries no sampling noise.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass
from functools import cache

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from bases.nano import data
from bases.nano.pages import Shelf, walk


@dataclass(frozen=True, slots=True)
class Skill:
    """Mean over `count` items of exact match: greedy, and the probability at temperature 1."""

    greedy: float
    sampled: float
    count: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Items, the agent's turn that is scored, and how many tokens at its start and end are given."""

    items: list[list[data.Piece]]
    turn: int
    skip: tuple[int, int] = (0, 0)


def probes(count: int, seed: int = 1) -> dict[str, Probe]:
    """Skill name -> probe, over one held-out world.

    query    the first search of a one-hop question; query2 of a two-hop question
    rec4     the handle of the right line among 4, given ` #`; rec8 among 8
    answer1  the whole answer of a one-hop question, with the decision not to search again
    hop4     the whole second search, the name being only in one of 4 lines
    answer2  the whole answer of a two-hop question over two responses of 4 lines; answer3 of three, from handle 5 on
    keep4    the whole keep list after the first of two searches, when the window is said to be half full
    pages4   the whole answer to a question over four pages, one or two of which are right
    """
    library = data.Library(random.Random(seed), "heldout", 600)
    one, two = library.questions(1, count), library.questions(2, count)

    def walks(asked, results: int, full: float = 0.0) -> list[list[data.Piece]]:
        return [data.trajectory(library, question, links, results, True, full) for question, links in asked]

    four, both = walks(one, 4), walks(two, 4)
    three = [data.trajectory(library, *q, 4, True, 0.0, 5) for q in library.questions(3, count)]
    pruned = [item for item in walks(two, 4, 1.0) + walks(two, 4, 1.0) if "prune_chunks" in item[-1].text][:count]
    return {
        "query": Probe([data.first_query(*q, True) for q in one], 0),
        "query2": Probe(both, 0),
        "rec4": Probe(four, 1, (1, 1)),
        "rec8": Probe(walks(one, 8), 1, (1, 1)),
        "answer1": Probe(four, 1),
        "hop4": Probe(both, 1),
        "answer2": Probe(both, 2),
        "answer3": Probe(three, 3),
        "keep4": Probe(pruned, 1),
        "pages4": Probe(reading(count), -1),
    }


@cache
def reading(count: int) -> list[list[data.Piece]]:
    """`count` walks over four pages under held-out names, by questions of every kind."""
    shelf, rng = Shelf(1, "heldout", 400), random.Random(1)
    asked = rng.sample(shelf.asked, count)
    return [walk(rng, question, shelf.lines(rng, question, gold, 4), prunes=0.0) for question, gold in asked]


@torch.no_grad()
def measure(model, tokenizer: Tokenizer, asked: Probe, batch: int = 20) -> Skill:
    """Score one turn (a stretch of weight 1) of every item."""
    examples = data.encode(tokenizer, asked.items)
    greedy = sampled = 0.0
    for at in range(0, len(examples), batch):
        group = examples[at : at + batch]
        width = max(len(e.ids) for e in group)
        ids = torch.tensor([e.ids + [0] * (width - len(e.ids)) for e in group])
        hidden = model.model(input_ids=ids, use_cache=False, attention_mask={"full_attention": None}).last_hidden_state
        for row, example in enumerate(group):
            start, stop = _turn(example.weights, asked.turn)
            start, stop = start + asked.skip[0], stop - asked.skip[1]
            logp = model.lm_head(hidden[row, start - 1 : stop - 1]).float().log_softmax(-1)
            target = ids[row, start:stop]
            greedy += float((logp.argmax(-1) == target).all())
            sampled += float(logp.gather(1, target[:, None]).sum().exp())
    return Skill(greedy / len(examples), sampled / len(examples), len(examples))


def _turn(weights: list[float], turn: int) -> tuple[int, int]:
    """The `turn`-th maximal stretch of weight 1, as (start, stop)."""
    starts = [i for i, w in enumerate(weights) if w == 1.0 and (i == 0 or weights[i - 1] != 1.0)]
    start = starts[turn]
    stop = next((i for i in range(start, len(weights)) if weights[i] != 1.0), len(weights))
    return start, stop


def all_skills(model, tokenizer: Tokenizer, count: int = 60) -> dict[str, Skill]:
    model.eval()
    with torch.autocast("cpu", torch.bfloat16):
        scores = {name: measure(model, tokenizer, asked) for name, asked in probes(count).items()}
    model.train()
    return scores


ARGUMENTS = {"search_corpus": "query", "grep_corpus": "pattern", "read_document": "doc_id", "prune_chunks": "keep"}


@torch.no_grad()
def valid_turns(model, tokenizer: PreTrainedTokenizerBase, count: int, seed: int = 0) -> float:
    """Share of turns sampled at temperature 1 that the harness can use: known tools with their argument, or handles.

    `count` two-hop items give three turns each: the first search, the second, the answer.
    """
    from renderers import Qwen3Renderer

    torch.manual_seed(seed)
    renderer = Qwen3Renderer(tokenizer)
    valid = total = 0
    for example in data.encode(tokenizer.backend_tokenizer, probes(count)["query2"].items):
        for turn in range(3):
            prompt = torch.tensor([example.ids[: _turn(example.weights, turn)[0]]])
            said = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                max_new_tokens=60,
                pad_token_id=0,
                eos_token_id=2,
            )[0, prompt.shape[1] :].tolist()
            valid += said[-1] == 2 and _usable(renderer.parse_response(said))
            total += 1
    return valid / total


def _usable(parsed) -> bool:
    if not parsed.tool_calls:
        return re.fullmatch(r"( ?#\d+)+", parsed.content) is not None
    return all(set(c.arguments or ()) == {ARGUMENTS.get(c.name)} for c in parsed.tool_calls)


def main() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("folder", help="a model folder")
    p.add_argument("--count", type=int, default=200, help="items per skill")
    args = p.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    print("| skill | greedy | temperature 1 | items |\n|---|---|---|---|")
    for name, asked in probes(args.count).items():
        skill = measure(model, tokenizer.backend_tokenizer, asked)
        print(f"| {name} | {skill.greedy:.2f} | {skill.sampled:.2f} | {skill.count} |")
    print(f"| usable turns | | {valid_turns(model, tokenizer, args.count // 2):.3f} | {args.count // 2 * 3} |")


if __name__ == "__main__":
    main()
