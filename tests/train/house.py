"""A tiny network and episodes for it: what the tests of nn and train stand on."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import torch
from transformers import Qwen3Config

from trivium.nn import Network, Packed
from trivium.trace import Episode, Segment, Task, Thread
from trivium.train import AdamW, Algorithm, Batch, Compute, Group, Learner

torch.set_num_threads(1)
VOCABULARY = 61


def config(**changes) -> Qwen3Config:
    sizes = dict(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=512, tie_word_embeddings=True,
        initializer_range=0.3,
    )  # fmt: skip
    return Qwen3Config(**{**sizes, **changes})


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> Network:
    return Network(config(), seed=seed, dtype=dtype)


def thread(rng: random.Random, turns: int = 2, policy: str = "agent", id: str = "agent") -> Thread:
    """A thread of one segment: a prompt, then `turns` turns of sampled tokens with a tool result between them."""
    segment = Segment()
    segment.append(draw(rng, 3, 6), "prompt")
    for turn in range(turns):
        tokens = draw(rng, 1, 5)
        segment.speak(tokens, [-1.0] * len(tokens), [turn] * len(tokens))
        if turn < turns - 1:
            segment.append(draw(rng, 1, 4), "chunk", f"#{turn}")
    return Thread(id, policy, [segment])


def draw(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]


def episode(id: str, rng: random.Random, turns: int = 2) -> Episode:
    return Episode(id, Task(id.split("/")[0], "?"), threads=[thread(rng, turns)])


def groups(seed: int = 0, count: int = 3, size: int = 3) -> list[Group]:
    """Groups of episodes with unequal rewards, episodes of unequal lengths."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        episodes = [episode(f"task{number}/{sample}", rng, turns=rng.randint(1, 3)) for sample in range(size)]
        made.append(Group(f"task{number}", episodes, [float(sample) + rng.random() / 2 for sample in range(size)]))
    return made


@torch.no_grad()
def record(net: Network, episodes: Sequence[Episode], noise: float = 0.0, seed: int = 0) -> None:
    """Set the logprobs of sampled tokens to what `net` says, off by normal noise: as if an older version had spoken."""
    rng = random.Random(seed)
    for segment in (s for e in episodes for t in e.threads for s in t.segments):
        tokens, view = torch.tensor(segment.tokens), Packed([len(segment.tokens)])
        said = net.logprobs(net.hidden(tokens, view.positions, view)[:-1], tokens[1:])[0].tolist()
        for place in (p for span in segment.sampled() for p in range(span.start, span.stop)):
            segment.logprobs[place] = min(0.0, said[place - 1] + noise * rng.gauss(0, 1))


def recut(old: Episode, cuts: Sequence[int]) -> Episode:
    """The same sampled tokens under the same contexts, the agent's only segment cut into more (law 3)."""
    made = []
    (whole,) = old.agent.segments
    places = sorted({cut for cut in cuts if 0 < cut < len(whole.tokens)})
    for start, stop in zip([0, *places], [*places, len(whole.tokens)], strict=True):
        made.append(_piece(whole, start, stop))
    return dataclasses.replace(old, threads=[dataclasses.replace(old.agent, segments=made), *old.threads[1:]])


def _piece(whole: Segment, start: int, stop: int) -> Segment:
    """Tokens up to `stop` in view, those left of `start` carried over; spans and runs are cut at both."""
    spans = [_cut(span, low, high) for span in whole.spans for low, high in ((0, start), (start, stop))]
    runs = [_cut(run, low, high) for run in whole.versions for low, high in ((0, start), (start, stop))]
    overrides = [_cut(part, low, high) for part in whole.overrides for low, high in ((0, start), (start, stop))]
    return Segment(
        whole.tokens[:stop],
        whole.logprobs[:stop],
        whole.kept[:stop],
        [span for span in spans if span.start < span.stop],
        [run for run in runs if run.start < run.stop],
        whole.sampling,
        carried=start,
        overrides=[part for part in overrides if part.start < part.stop],
    )


def _cut(piece, low: int, high: int):
    return dataclasses.replace(piece, start=max(piece.start, low), stop=min(piece.stop, high))


def gradients(learner: Learner, batch: Batch) -> tuple[list[dict[str, torch.Tensor]], dict[str, float]]:
    """What each substep's gradient is, and the step's metrics; the weights are left as they are."""
    seen = []

    def keep(*_args, **_kwargs) -> None:
        seen.append({name: p.grad.clone() for name, p in learner.network.model.named_parameters()})

    learner.optimizer.step = keep
    return seen, learner.learn(batch).metrics


def learner(net: Network, algorithm: Algorithm, **options) -> Learner:
    """A learner whose gradients are not clipped, with a reference network where the algorithm reads one."""
    options.setdefault("max_grad_norm", float("inf"))
    computed = ("micro_tokens", "autocast", "share", "recompute")
    compute = Compute(**{name: options.pop(name) for name in computed if name in options})
    whole = {"policies": options.pop("policies")} if "policies" in options else {}
    whole["reference"] = network(seed=9) if algorithm.reference else None
    return Learner(net, algorithm, 1e-3, optimizer=AdamW(**options), compute=compute, **whole)
