"""Publish in one process: hand over the tensors, then ask the receiver what it really holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from trivium.errors import InputError, LawError, Unsupported
from trivium.nn import Network, Packed
from trivium.nn.network import digest
from trivium.weights.store import Probe

TOLERANCE = 1e-3
"""Nats between the learner's and the engine's logprobs of a probe token. In float32 on a CPU they differ by 1e-5; a
wrong layer differs by more than 0.1."""
COARSE = 0.5
"""The same for a receiver that computes in 16 bits: 0.24 were seen between the nano base in bfloat16 and in float32. There
the digest must tell what the probe cannot."""


class Receiver(Protocol):
    """Who speaks with published weights: an engine here, a server elsewhere."""

    version: int

    def load(self, state: dict[str, torch.Tensor], version: int) -> None: ...

    def digest(self) -> str: ...

    def logprobs(self, tokens: Sequence[int]) -> torch.Tensor: ...


def publish(network: Network, version: int, receiver: Receiver, probe: Sequence[int]) -> float:
    """Give `network`'s weights to `receiver` as `version` and return the probe's largest logprob gap.

    No weights on trust (law 10): raises LawError unless the digest of the tensors that the receiver holds is the
    published one, its logprobs on `probe` are within TOLERANCE of the learner's, and no further from them (but by noise)
    than before; Unsupported, before anything is loaded, for an engine that would round them.
    A well-known server's hot reload says yes and serves the old weights.
    """
    return deliver(network.state(), version, receiver, Probe(list(probe), probed(network, probe).tolist()))


def deliver(state: dict[str, torch.Tensor], version: int, receiver: Receiver, probe: Probe | None) -> float:
    """`publish` of a state with the logprobs that it should give; without a probe only the digest is checked (gap 0).

    A receiver in float32 may hold a bfloat16 state: widening changes no value, and the digest is that of the widened one.
    """
    _refuse_rounding(state, receiver)
    before = _gap(receiver, probe)
    receiver.load(state, version)
    held, wide = receiver.digest(), digest(_widened(state))
    if held != wide and held != digest(state):
        raise LawError(f"version {version} was published, but the receiver holds other weights")
    tolerance, noise = (TOLERANCE, TOLERANCE / 10) if held == wide else (COARSE, COARSE)
    gap = _gap(receiver, probe)
    if gap > tolerance or gap > max(before, noise):
        raise LawError(f"version {version}: the receiver's logprobs are {gap:.2g} from the learner's (before: {before:.2g})")
    return gap


def _refuse_rounding(state: dict[str, torch.Tensor], receiver: Receiver) -> None:
    """A server says so itself (`Vllm.load`); an engine's network would cast without a word."""
    if (network := getattr(receiver, "network", None)) is None:
        return
    holds = network.head.weight.dtype
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.dtype != holds and tensor.dtype.itemsize >= holds.itemsize:
            raise Unsupported(
                f"the engine holds {holds} and {name} is {tensor.dtype}: load the engine's network in {tensor.dtype}, or "
                f"publish with Publisher(dtype={holds})"
            )


def _gap(receiver: Receiver, probe: Probe | None) -> float:
    """NaN counts as infinitely far."""
    if probe is None:
        return 0.0
    gap = (receiver.logprobs(probe.tokens).cpu() - torch.tensor(probe.logprobs)).abs().max().item()
    return gap if gap == gap else math.inf


def _widened(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for name, t in state.items()}


@torch.inference_mode()
def probed(network: Network, tokens: Sequence[int]) -> torch.Tensor:
    """Logprobs float32 [len - 1] of a probe's tokens, as the learner computes them."""
    if isinstance(tokens, str):
        raise InputError("a probe is made of tokens: engine.renderer.encode(text)")
    if len(tokens) < 2:
        raise InputError("a probe needs two tokens or more: the first is only read")
    run, view = torch.tensor(list(tokens), device=network.head.weight.device), Packed([len(tokens)])
    return network.logprobs(network.hidden(run, view.positions.to(run.device), view)[:-1], run[1:])[0]
