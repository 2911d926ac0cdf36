"""Publish in one process: hand over the tensors, then ask the receiver what it really holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from trivium.errors import LawError
from trivium.nn import Network, Packed

TOLERANCE = 1e-3
"""Nats between the learner's and the engine's logprobs of a probe token. In float32 on a CPU they differ by 1e-5; a
wrong layer differs by more than 0.1."""


class Subscriber(Protocol):
    """Who speaks with published weights: an engine here, a server elsewhere."""

    version: int

    def load(self, state: dict[str, torch.Tensor], version: int) -> None: ...

    def digest(self) -> str: ...

    def score(self, tokens: Sequence[int]) -> torch.Tensor: ...


def publish(network: Network, version: int, subscriber: Subscriber, probe: Sequence[int]) -> float:
    """Give `network`'s weights to `subscriber` as `version` and return the probe's largest logprob gap.

    No weights on trust (law 10): raises LawError unless the digest of the tensors that the subscriber holds is the
    published one, its logprobs on `probe` are within TOLERANCE of the learner's, and nearer to them than the old ones were.
    A well-known server's hot reload says yes and serves the old weights (ecosystem.md, fact 2).
    """
    wanted = _probe(network, probe)
    before = (subscriber.score(probe) - wanted).abs().max().item()
    subscriber.load(network.state(), version)
    if subscriber.digest() != network.digest():
        raise LawError(f"version {version} was published, but the subscriber holds other weights")
    gap = (subscriber.score(probe) - wanted).abs().max().item()
    if gap > TOLERANCE or gap > max(before, TOLERANCE / 10):
        raise LawError(f"version {version}: the subscriber's logprobs are {gap:.2g} from the learner's (before: {before:.2g})")
    return gap


@torch.inference_mode()
def _probe(network: Network, tokens: Sequence[int]) -> torch.Tensor:
    run, view = torch.tensor(list(tokens)), Packed([len(tokens)])
    return network.logprobs(network.hidden(run, view.positions, view)[:-1], run[1:])[0]
