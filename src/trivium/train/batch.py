"""Scored groups -> advantages per episode -> rows -> packed micro-batches of whole optimizer steps.

Two episodes of one group, the second cut in two segments by a prune (S sampled, . context):

    episode a   reward 1   . . S S . S                      3 trained tokens
    episode b   reward 0   . . S S S .   |   . . . S S      5 trained tokens in two rows

    advantages (centred)   a 0.5, b -0.5
    rows, packed           [. . S S . S][. . S S S .][. . . S S]     one run of 17 tokens, attention within brackets
    prefixes once          [. . S S . S]     [S S S .]  [. S S]      11 tokens, when all rows begin with the same two
    weights (token mean)   1/8 on each S
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from trivium.errors import InputError, LawError, Unsupported
from trivium.nn import Packed
from trivium.trace import Episode, Row, rows
from trivium.train.algorithms import Algorithm, Counts

EQUAL = 1e-6
"""Rewards of a group that differ by less teach nothing (SkyRL's tolerance; noise over a tiny std is no signal)."""


@dataclass(frozen=True, slots=True)
class Group:
    """The episodes of one task that share a baseline, and what each was worth.

    The baseline is the group's own, of `rewards`, unless the caller states one: what the task is worth on average, known from
    elsewhere. With it a group of one teaches something, too (people ask a question once). The advantage is then reward -
    `baseline` under every algorithm that compares, divided by nothing: one episode has no spread (AReaL turns normalisation
    off for the same reason). RFT imitates the best only where it beats the baseline, too.
    """

    task_id: str
    episodes: list[Episode]
    rewards: list[float]
    baseline: float | None = None

    def __post_init__(self) -> None:
        if len(self.episodes) != len(self.rewards):
            raise InputError(f"group {self.task_id}: {len(self.episodes)} episodes, {len(self.rewards)} rewards")
        if not np.isfinite(self.rewards).all():
            raise InputError(f"group {self.task_id}: the rewards {self.rewards} are not all finite")
        if self.baseline is not None and not np.isfinite(self.baseline):
            raise InputError(f"group {self.task_id}: the baseline {self.baseline} is not finite")

    @property
    def differs(self) -> bool:
        """Whether its rewards say which attempt was better: they differ, or one of them differs from the stated baseline."""
        values = [*self.rewards] if self.baseline is None else [*self.rewards, self.baseline]
        return bool(values) and bool(np.ptp(values) >= EQUAL)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step learns from."""

    groups: list[Group]

    def __post_init__(self) -> None:
        if wrong := next((group for group in self.groups if not isinstance(group, Group)), None):
            raise InputError(f"a batch is made of groups, Batch([Group(...)]), not of {type(wrong).__name__}")

    @classmethod
    def imitate(cls, episodes: Sequence[Episode]) -> Batch:
        """Episodes to imitate, each a group of its own (SFT gives each the advantage 1)."""
        return cls([Group(episode.task.id, [episode], [1.0]) for episode in episodes])


@dataclass(frozen=True, slots=True)
class Lesson:
    """One episode as the learner sees it. `task` numbers its task in this rank's batch: the attempts at it and their branches
    are one problem to a normaliser. `parent` is what it branched off. One that is not `learned` is only counted."""

    episode: str
    task: int
    advantage: float
    rows: list[Row]
    parent: str = ""
    learned: bool = True

    @property
    def trained(self) -> int:
        return sum(row.trained for row in self.rows)

    @property
    def family(self) -> str:
        """The episode with which it shares its beginning, or itself."""
        return self.parent or self.episode


@dataclass(frozen=True, slots=True)
class Micro:
    """Rows packed into one run of N tokens, in which M tokens of rows are trained at U <= M different places.

    tokens int64 [N]; lengths of the rows, and how many tokens each shares with the row before (nn.Packed);
    place int64 [U] in the run, and int64 [U] where the token to the left of each stands; temperature float [U];
    of int64 [M]: the place of a trained token, as a number below U: rows that share a sampled token train it each;
    old, advantage, weight float [M]; version int64 [M]; episode int64 [M] numbers the substep's lessons.
    """

    tokens: Tensor
    lengths: list[int]
    shared: list[int]
    place: Tensor
    left: Tensor
    temperature: Tensor
    of: Tensor
    old: Tensor
    advantage: Tensor
    weight: Tensor
    version: Tensor
    episode: Tensor

    def to(self, device: torch.device) -> Micro:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Micro(**{name: value.to(device) if isinstance(value, Tensor) else value for name, value in values.items()})


def lessons(batch: Batch, algorithm: Algorithm, policies: Collection[str]) -> tuple[list[Lesson], int]:
    """Each episode with its advantage and rows, and the number of groups whose rewards are all equal: they are dropped, or
    counted, or learned from at advantage 0, as the algorithm says.

    Episodes without a trained token count for the baseline of their group and nowhere else.
    """
    every, equal, numbers = [], 0, {}
    for group in batch.groups:
        number = numbers.setdefault(group.task_id, len(numbers))
        compared = group.differs or not algorithm.samples
        equal += not compared
        if not compared and algorithm.equal == "drop":
            continue
        advantages = _credit(algorithm, group) if compared else [0.0] * len(group.rewards)
        for episode, advantage in zip(group.episodes, advantages, strict=True):
            if algorithm.rejects and advantage == 0:
                continue
            parts = rows(episode, policies)
            for row in parts:
                _check(row, algorithm)
            if parts:
                learned = compared or algorithm.equal == "learn"
                every.append(Lesson(episode.id, number, advantage, parts, episode.parent, learned))
    return every, equal


def _credit(algorithm: Algorithm, group: Group) -> list[float]:
    """The advantage of each episode: over the group's own baseline, or over the one that is stated."""
    rewards = torch.tensor(group.rewards, dtype=torch.float64)
    if group.baseline is None or not algorithm.samples:
        return _checked_credit(algorithm, group, rewards)
    gains = (rewards - group.baseline).tolist()
    if not algorithm.rejects:
        return gains
    return [each * (gain > 0) for each, gain in zip(_checked_credit(algorithm, group, rewards), gains, strict=True)]


def _checked_credit(algorithm: Algorithm, group: Group, rewards: Tensor) -> list[float]:
    advantages = algorithm.credit(rewards)
    if not isinstance(advantages, Tensor):
        raise InputError(
            f"{algorithm.name}'s credit gives {type(advantages).__name__}, not a tensor with a number for each reward"
        )
    if advantages.shape != (len(group.rewards),) or not torch.isfinite(advantages).all():
        gave = f"{algorithm.name}'s credit of {group.rewards} is {advantages.tolist()}"
        raise InputError(f"group {group.task_id}: {gave}: it is to be a finite number each")
    return advantages.tolist()


def _check(row: Row, algorithm: Algorithm) -> None:
    where = f"episode {row.episode}, thread {row.thread}, segment {row.segment}"
    if row.mask[0]:
        raise LawError(f"{where}: its first token is sampled, under no context")
    if not algorithm.samples:
        return
    if not np.isfinite(row.logprobs[row.mask]).all():
        raise Unsupported(f"{algorithm.name} needs logprobs, {where} was sampled without (a text-only policy); SFT does not")
    if row.truncated:
        raise Unsupported(f"{algorithm.name} needs samples of the whole distribution, {where} was cut by top-p or top-k")
    if row.temperature <= 0:
        raise Unsupported(f"{algorithm.name} needs samples, {where} was decoded greedily (temperature 0); SFT does not")


def split(every: list[Lesson], substeps: int, offset: int = 0) -> list[list[Lesson]]:
    """Whole episodes dealt in turn to `substeps` optimizer steps, each with its branches, so that what they share is computed
    once; `offset` is the number of such families on lower ranks.

    The rule sees no length and no row, so neither cutting an episode nor moving it to another rank changes its step.
    """
    parts: list[list[Lesson]] = [[] for _ in range(substeps)]
    turn = {family: number for number, family in enumerate(families(every), offset)}
    for lesson in every:
        parts[turn[lesson.family] % substeps].append(lesson)
    return parts


def families(every: list[Lesson]) -> list[str]:
    """Each family once, in order."""
    return list(dict.fromkeys(lesson.family for lesson in every))


def counts(part: list[Lesson], totals: Tensor | None = None) -> Counts:
    """Lengths of one substep's episodes; `totals` = `local(part)` summed over ranks (by default this rank is alone)."""
    episodes, groups, tokens, _ = (int(number) for number in (local(part) if totals is None else totals))
    length = torch.tensor([lesson.trained for lesson in part], dtype=torch.float64)
    number = torch.tensor([lesson.task for lesson in part], dtype=torch.int64)
    of_group = torch.zeros(int(number.max()) + 1 if part else 0, dtype=torch.float64).index_add_(0, number, length)
    return Counts(length, of_group[number], episodes, groups, tokens)


def local(part: list[Lesson]) -> Tensor:
    """Episodes, groups and trained tokens of this rank's part of a substep, and how many of the episodes are learned from
    and not only counted: int64 [4]."""
    numbers = [len(part), len({lesson.task for lesson in part}), sum(lesson.trained for lesson in part)]
    return torch.tensor([*numbers, sum(lesson.learned for lesson in part)], dtype=torch.int64)


Numbered = tuple[Row, int]
"""A row, and its lesson's number in the substep."""


def micros(part: list[Lesson], weights: Tensor, algorithm: Algorithm, budget: int, share: bool = True) -> list[Micro]:
    """The rows of one substep, packed under `budget` tokens a run (a longer row has a run to itself).

    With `share` what rows of one run have in common at their beginning stands in it once.
    """
    every = [(row, number) for number, lesson in enumerate(part) if lesson.learned for row in lesson.rows]
    if share:
        return [_micro(*both, part, weights, algorithm) for both in share_prefixes(every, budget)]
    bins = pack([len(row.tokens) for row, _ in every], budget)
    return [_micro([every[place] for place in places], [0] * len(places), part, weights, algorithm) for places in bins]


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """First-fit decreasing: the places of `lengths` in bins whose sums stay within `budget`; ties in order."""
    bins: list[list[int]] = []
    room: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        fit = next((number for number, left in enumerate(room) if lengths[place] <= left), None)
        if fit is None:
            fit = len(bins)
            bins.append([])
            room.append(budget)
        bins[fit].append(place)
        room[fit] -= lengths[place]
    return bins


def share_prefixes(every: list[Numbered], budget: int) -> list[tuple[list[Numbered], list[int]]]:
    """Rows in the order of their tokens, so that each shares the most with the one before, cut into bins of at most
    `budget` different tokens. Rows of different temperatures share nothing: a place has one distribution."""
    bins: list[tuple[list[Numbered], list[int]]] = []
    size, before = 0, None
    for one in sorted(every, key=lambda one: (one[0].temperature, one[0].tokens.astype(">i4").tobytes())):
        row = one[0]
        common = _common(before, row) if before is not None and before.temperature == row.temperature else 0
        if not bins or size + len(row.tokens) - common > budget:
            bins.append(([], []))
            size, common = 0, 0
        bins[-1][0].append(one)
        bins[-1][1].append(common)
        size, before = size + len(row.tokens) - common, row
    return bins


def _common(one: Row, two: Row) -> int:
    """How many tokens two rows have in common at their beginning."""
    both = min(len(one.tokens), len(two.tokens))
    differ = np.flatnonzero(one.tokens[:both] != two.tokens[:both])
    return int(differ[0]) if len(differ) else both


def _micro(numbered: list[Numbered], shared: list[int], part: list[Lesson], weights: Tensor, algorithm: Algorithm) -> Micro:
    parts = [row for row, _ in numbered]
    view = Packed([len(row.tokens) for row in parts], shared)
    # where every token of every row stands in the run, and where the one to its left does
    every = [view.places(number) for number in range(len(parts))]
    masks = [torch.from_numpy(row.mask) for row in parts]
    index = torch.cat([places[mask] for places, mask in zip(every, masks, strict=True)])
    left = torch.cat([places.roll(1)[mask] for places, mask in zip(every, masks, strict=True)])
    place, of = index.unique(return_inverse=True)
    # imitation is at temperature 1, whatever the teacher's was
    heat = torch.tensor([row.temperature if algorithm.samples else 1.0 for row in parts], dtype=torch.float64)
    trained = torch.tensor([row.trained for row in parts])
    episode = torch.tensor([number for _, number in numbered]).repeat_interleave(trained)
    advantages = torch.tensor([lesson.advantage for lesson in part], dtype=torch.float64)
    return Micro(
        tokens=torch.from_numpy(np.concatenate([row.tokens[s:] for row, s in zip(parts, shared, strict=True)])).long(),
        lengths=view.lengths,
        shared=view.shared,
        place=place,
        left=_scattered(left, of, len(place)),
        temperature=_scattered(heat.repeat_interleave(trained), of, len(place)),
        of=of,
        old=torch.from_numpy(np.concatenate([row.logprobs[row.mask] for row in parts])),
        advantage=advantages[episode],
        weight=weights[episode],
        version=torch.from_numpy(np.concatenate([row.versions[row.mask] for row in parts])).long(),
        episode=episode,
    )


def blank() -> Micro:
    """A run of one token in which none is trained: its gradients are zero."""
    whole, none = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)
    return Micro(torch.zeros(1, dtype=torch.int64), [1], [0], whole, whole, none, whole, none, none, none, whole, whole)


def _scattered(values: Tensor, of: Tensor, places: int) -> Tensor:
    """[M] to [U]: rows that share a place agree on what is there."""
    return values.new_empty(places).scatter_(0, of, values)
