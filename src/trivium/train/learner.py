"""The learner: a network, an algorithm it is blind to, and AdamW. One step is one batch in one or more substeps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trivium.errors import InputError, TriviumError, Unsupported
from trivium.nn import Network, Packed
from trivium.nn.shard import part as own_part
from trivium.nn.shard import whole
from trivium.train import ranks
from trivium.train.algorithms import Algorithm, Tokens
from trivium.train.batch import (
    Batch,
    Lesson,
    Micro,
    blank,
    counts,
    families,
    lessons,
    local,
    micros,
    split,
)
from trivium.train.feedback import Hinted, Share, deal, divergences, sampled
from trivium.train.settings import AdamW, Compute


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did: the new version and its numbers (those of all ranks together; docs/algorithms.md names each)."""

    version: int
    metrics: dict[str, float]


class Learner:
    """Changes a network by scored batches.

    Under torch.distributed every rank holds the same weights and calls `step` with its own groups; gradients and counts
    are summed, so N ranks do what one process would do with all groups in the order of ranks. A network that `nn.shard`
    spread over the ranks sums its gradients itself; `optimizer_state` and checkpoints are then for all ranks to call.
    """

    def __init__(
        self,
        network: Network,
        algorithm: Algorithm,
        lr: float,
        *,
        policies: Collection[str] = frozenset({"agent"}),
        reference: Network | None = None,
        optimizer: AdamW = AdamW(),
        compute: Compute = Compute(),
    ) -> None:
        """Learns from the threads spoken by `policies`; the others are frozen (law 5).

        `lr` is the rate that the optimizer's schedule scales. `reference` is read, never changed; Unsupported unless given
        exactly where the algorithm reads it.
        """
        if not isinstance(network, torch.nn.Module):
            raise InputError(f"{network!r} is no Network: load it with Network.load(path)")
        if any(weight.requires_grad and weight.element_size() < 4 for weight in network.parameters()):
            raise InputError("small steps are rounded away in 16 bits: load what learns in float32 (`autocast` saves time)")
        if not isinstance(algorithm, Algorithm):
            raise InputError(f"{algorithm!r} is no Algorithm: a row of the table is called, as in CISPO()")
        if algorithm.reference != (reference is not None):
            verb = "needs" if algorithm.reference else "does not read"
            raise Unsupported(f"{algorithm.name} {verb} a reference network (Learner's `reference`)")
        if algorithm.feedback and network.sharded:
            raise Unsupported("a sharded network cannot learn from feedback: ranks have unequally many hinted turns")
        if reference is network:
            raise InputError("the reference is the very network that learns, so nothing would be near or far: load it twice")
        if isinstance(policies, str):
            raise InputError(f"policies is a set of names, {{{policies!r}}}")
        network.recompute(compute.recompute)
        self.network = network
        self.algorithm = algorithm
        self.lr = lr
        self.policies = frozenset(policies)
        self.reference = reference
        self.adamw = optimizer
        self.compute = compute
        self.version = 0
        self.optimizer = optimizer.of(network, lr)
        self.changing = threading.Lock()  # by a step, also one whose caller was cancelled: its thread goes on

    async def step(self, batch: Batch) -> Step:
        """Learn from `batch` in a thread of its own, off the event loop; the version rises by one, signal or none.

        Raises Unsupported where the algorithm cannot use an episode, on all ranks and before any weight changes. One step at a
        time: a second one waits for the first.
        """
        return await asyncio.to_thread(self.learn, batch)

    def learn(self, batch: Batch) -> Step:
        """`step`, here and now."""
        with self.changing:
            return self._learn(batch)

    def _learn(self, batch: Batch) -> Step:
        if not all(p.requires_grad for group in self.optimizer.param_groups for p in group["params"]):
            raise InputError("weights that this learner was given have been frozen since: lora() comes before Learner()")
        every, dropped, offset, hints = self._agree(batch)
        shares = self._shares(batch, hints)
        meter = Meter()
        meter.add("groups", len(batch.groups))
        meter.add("groups_dropped", dropped)
        for group in batch.groups:
            meter.add_each("reward", torch.tensor(group.rewards, dtype=torch.float64))
        for number, part in enumerate(split(every, self.adamw.substeps, offset)):
            self._substep(part, shares[number] if shares else None, meter, first=number == 0)
        metrics = meter.read()
        metrics["no_signal"] = float(metrics["updates"] + metrics["updates_skipped"] == 0)
        metrics["lr"] = self.lr * self.adamw.schedule(self.version)
        self.version += 1
        return Step(self.version, metrics)

    def _agree(self, batch: Batch) -> tuple[list[Lesson], int, int, list[list[Hinted]]]:
        """This rank's lessons, groups dropped, the families of lower ranks, and the hinted turns of each episode that has some;
        one rank's error is raised on all."""
        every, dropped, hints, error = [], 0, [], None
        try:
            every, dropped = lessons(batch, self.algorithm, self.policies)
            self._check_tokens(every)
            if feedback := self.algorithm.feedback:
                episodes = [episode for group in batch.groups for episode in group.episodes]
                hints = [turns for episode in episodes if (turns := feedback.of(episode, self.policies))]
        except TriviumError as caught:
            error = caught
        reports, mine = ranks.gather((error, len(families(every))))
        for other, _ in reports:
            if other is not None:
                raise other
        return every, dropped, sum(number for _, number in reports[:mine]), hints

    def _shares(self, batch: Batch, hints: list[list[Hinted]]) -> list[Share]:
        """What each update learns from hints; nothing where the algorithm has no such term."""
        feedback = self.algorithm.feedback
        return deal(feedback, hints, sampled(batch, self.policies), self.adamw.substeps) if feedback else []

    def _check_tokens(self, every: list[Lesson]) -> None:
        size = self.network.config.vocab_size
        for lesson in every:
            for row in lesson.rows:
                if row.tokens.min() < 0 or row.tokens.max() >= size:
                    raise InputError(f"episode {row.episode} has a token that this network, of {size:,}, does not know")

    def _substep(self, part: list[Lesson], share: Share | None, meter: Meter, first: bool) -> None:
        totals = ranks.total(local(part))
        if totals[3] == 0 and not (share and share.learned):
            return
        self.optimizer.zero_grad(set_to_none=True)  # a step that broke half-way may have left some
        if totals[3]:
            self._reinforce(part, totals, meter, first)
        if share:
            self._heed(share, meter)
        self._update(meter)

    def _reinforce(self, part: list[Lesson], totals: Tensor, meter: Meter, first: bool) -> None:
        """The gradients of the algorithm's own loss."""
        meter.add("episodes", sum(lesson.learned for lesson in part))
        weights = self.algorithm.normaliser(counts(part, totals))
        _check_shape(self.algorithm, "normaliser", weights, len(part), "episode")
        runs = self._micros(part, weights)
        sequence = self._sequence(runs, part) if self.algorithm.sequence else None
        for micro in runs:
            self._backward(micro, sequence, meter, first)

    def _heed(self, share: Share, meter: Meter) -> None:
        """The gradients of the feedback term, beside those of the loss."""
        for divergence in divergences(self.network, share.turns, self.compute.micro_tokens):
            (share.weight * divergence.sum()).backward()
            meter.add_each("feedback", divergence.detach())

    def _micros(self, part: list[Lesson], weights: Tensor) -> list[Micro]:
        """The runs of a substep: equally many on all ranks of a sharded network, as they gather its layers together."""
        runs = micros(part, weights, self.algorithm, self.compute.micro_tokens, self.compute.share)
        if self.network.sharded:
            runs += [blank()] * (int(ranks.largest(torch.tensor(len(runs)))) - len(runs))
        return [micro.to(self._device) for micro in runs]

    def _backward(self, micro: Micro, sequence: Tensor | None, meter: Meter, first: bool) -> None:
        new, entropy = self._logprobs(self.network, micro)
        tokens = Tokens(
            new=new,
            old=micro.old.to(new.dtype),
            advantage=micro.advantage.to(new.dtype),
            sequence=None if sequence is None else sequence[micro.episode].to(new.dtype),
            reference=self._reference(micro),
        )
        result = self.algorithm.loss(tokens)
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError(f"{self.algorithm.name}'s loss gives no pair: (loss [N], clipped [N])")
        value, cut = result
        for tensor in result:
            _check_shape(self.algorithm, "loss", tensor, len(new), "token")
        if not value.requires_grad:
            raise InputError(f"{self.algorithm.name}'s loss does not depend on `new`, so it teaches nothing")
        loss = (micro.weight.to(new.dtype) * value).sum()
        loss.backward()
        if not len(micro.of):
            return  # a blank
        meter.add("loss", loss.detach())
        meter.add("tokens_seen", sum(micro.lengths))
        meter.add("tokens_computed", len(micro.tokens))
        meter.add_each("entropy", entropy)
        meter.add_each("clipped", cut)
        meter.add_each("staleness", self.version - micro.version, worst=True)
        if self.algorithm.samples:
            _compare(tokens, meter, first)

    def _logprobs(self, network: Network, micro: Micro) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each trained token, [M]."""
        view = Packed(micro.lengths, micro.shared)
        with torch.autocast(micro.tokens.device.type, torch.bfloat16, enabled=self.compute.autocast):
            hidden = network.hidden(micro.tokens, view.positions.to(micro.tokens.device), view, micro.left)
        logp, entropy = network.logprobs(hidden, micro.tokens[micro.place], micro.temperature)
        return logp[micro.of], entropy[micro.of]

    @torch.no_grad()
    def _reference(self, micro: Micro) -> Tensor | None:
        return None if self.reference is None else self._logprobs(self.reference, micro)[0]

    @torch.no_grad()
    def _sequence(self, runs: list[Micro], part: list[Lesson]) -> Tensor:
        """Mean log-ratio of each episode: a forward pass ahead, as its rows may lie in several micro-batches."""
        sums = torch.zeros(len(part), dtype=torch.float64, device=self._device)
        for micro in runs:
            new, _ = self._logprobs(self.network, micro)
            sums.index_add_(0, micro.episode, (new - micro.old).double())
        return sums / torch.tensor([lesson.trained for lesson in part], device=self._device)

    def _update(self, meter: Meter) -> None:
        """One optimizer update from the gradients of all ranks; one that is not finite is counted and thrown away."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        if not self.network.sharded:
            ranks.sum_gradients(parameters)
        norm = whole(torch.nn.utils.clip_grad_norm_(parameters, self.adamw.max_grad_norm))
        if torch.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * self.adamw.schedule(self.version)
            self.optimizer.step()
            meter.updates += 1
            meter.norms.append(float(norm))
        else:
            meter.skipped += 1
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def _device(self) -> torch.device:
        return self.network.head.weight.device

    def optimizer_state(self) -> dict[str, Tensor]:
        """AdamW's moments and step counts, by `parameter name|field`; empty before the first update."""
        names = {id(p): name for name, p in self._parameters().items()}
        state = self.optimizer.state
        return {f"{names[id(p)]}|{key}": whole(value) for p in state for key, value in state[p].items()}

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        """Take over what `optimizer_state` gave. Raises InputError, unchanged, if it is of another network."""
        parameters = self._parameters()
        entries = [(*key.rsplit("|", 1), value) for key, value in state.items()]
        for name, key, value in entries:
            if name not in parameters or (key != "step" and value.shape != parameters[name].shape):
                raise InputError(f"this optimizer state is of another network: {name}")
        self.optimizer.state.clear()
        for name, key, value in entries:
            value = value.to(parameters[name].device) if key == "step" else own_part(value, parameters[name])
            self.optimizer.state[parameters[name]][key] = value.clone()  # a fused AdamW wants its step counts there too

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        """The network's parameters by name, as the optimizer knows them."""
        if self.network.sharded:
            self.network.reshard()  # ty: ignore[not-callable] FSDP2's; else some may be the gathered ones
        return dict(self.network.model.named_parameters())


@dataclass(slots=True)
class Meter:
    """Sums of a step. What is added is of this rank until `read`; updates and norms are the same on all ranks."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    worst: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_WORST, 0.0))
    norms: list[float] = field(default_factory=list)
    updates: int = 0
    skipped: int = 0

    def add(self, name: str, value: float | Tensor) -> None:
        self.sums[name] += float(value)

    def add_each(self, name: str, values: Tensor, worst: bool = False) -> None:
        """Values whose mean (and, if `worst`, whose maximum) is wanted."""
        self.sums[name] += float(values.double().sum())
        self.sums[f"{name}#"] += len(values)
        if worst and len(values):
            self.worst[name] = max(self.worst[name], float(values.max()))

    def read(self) -> dict[str, float]:
        """The step's metrics over all ranks: sums, means of what was counted, maxima."""
        sums = dict(zip(_SUMS, ranks.total(torch.tensor(list(self.sums.values()), dtype=torch.float64)).tolist(), strict=True))
        worst = ranks.largest(torch.tensor(list(self.worst.values()), dtype=torch.float64)).tolist()
        metrics = {name: sums[name] for name in _COUNTS}
        metrics["tokens_trained"] = sums["entropy#"]
        metrics["loss"] = sums["loss"] / max(1, self.updates + self.skipped)
        metrics |= {name: sums[name] / sums[f"{name}#"] for name in _MEANS if sums[f"{name}#"]}
        metrics |= {f"{name}_max": value for name, value in zip(_WORST, worst, strict=True) if sums[f"{name}#"]}
        metrics["grad_norm"] = sum(self.norms) / max(1, len(self.norms))
        return metrics | {"updates": float(self.updates), "updates_skipped": float(self.skipped)}


_WORST = ("ratio", "gap", "staleness")
_MEANS = ("reward", "entropy", "clipped", "feedback", *_WORST)
_COUNTS = ("groups", "groups_dropped", "episodes", "tokens_seen", "tokens_computed")
_SUMS = (*_COUNTS, "loss", *_MEANS, *(f"{name}#" for name in _MEANS))


def _check_shape(algorithm: Algorithm, part: str, tensor: Tensor, count: int, each: str) -> None:
    """InputError for a part of an algorithm that gives other than one number each, which would spread over all unseen."""
    if not isinstance(tensor, Tensor) or tensor.shape != (count,):
        shown = f"a tensor {list(tensor.shape)}" if isinstance(tensor, Tensor) else f"{type(tensor).__name__} {tensor!r}"
        raise InputError(f"{algorithm.name}'s {part} gives {shown}, not one number for each {each} [{count}], as a tensor")


def _compare(tokens: Tokens, meter: Meter, first: bool) -> None:
    """Ratios of this substep; before the first update also the gap between this network and the engine that sampled."""
    log = (tokens.new - tokens.old).detach()
    meter.add_each("ratio", log.exp(), worst=True)
    if first:
        meter.add_each("gap", log.abs(), worst=True)
