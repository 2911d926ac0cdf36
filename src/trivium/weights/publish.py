"""Publish in one process: hand over the tensors, then ask the receiver what it really holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from trivium.errors import InputError, LawError, Unsupported
from trivium.nn import Network, Packed
from trivium.nn.network import digest
from trivium.weights.store import Probe

TOLERANCE = 1e-3
"""Nats allowed between the learner's and the engine's logprobs of a probe token. In float32 on a CPU they differ by 1e-5; a
wrong layer differs by more than 0.1."""
TOLERANCE_16_BITS = 0.5
"""The same for a receiver that computes in 16 bits: the nano base in bfloat16 was 0.24 from itself in float32. There the digest
must tell what the probe cannot."""


class Receiver(Protocol):
    """What speaks with published weights: an engine here, a server elsewhere. One here may have `held()`, a context in which it
    draws nothing."""

    version: int

    def load(self, state: dict[str, torch.Tensor], version: int) -> None: ...

    def digest(self) -> str: ...

    def logprobs(self, tokens: Sequence[int]) -> torch.Tensor: ...


def publish(network: Network, version: int, receiver: Receiver, probe: Sequence[int]) -> float:
    """Give `network`'s weights to `receiver` as `version`. Returns the largest gap between logprobs of the probe, in nats.

    No weights on trust (law 10). Raises LawError unless the digest of the tensors that the receiver holds is the published
    one, its logprobs on `probe` are within TOLERANCE of the learner's, and they are no further from them (but by noise) than
    before. Raises Unsupported, before anything is loaded, for an engine that would round the weights. (A well-known server's
    hot reload reports success and serves the old weights.)
    """
    return deliver(network.state(), version, receiver, Probe(list(probe), probe_logprobs(network, probe).tolist()))


def deliver(state: dict[str, torch.Tensor], version: int, receiver: Receiver, probe: Probe | None) -> float:
    """`publish` a state, with the logprobs that it should give. Without a probe only the digest is checked, and the gap is 0.

    A receiver in float32 may hold a bfloat16 state: widening changes no value, and the digest is that of the wide one.
    """
    _refuse_rounding(state, receiver)
    before = _gap(receiver, probe)
    with held(receiver):
        receiver.load(state, version)
        actual, wide = receiver.digest(), digest(_widen(state))
        if actual != wide and actual != digest(state):
            raise LawError(f"version {version} was published, but the receiver holds other weights")
        gap = _gap(receiver, probe)
    tolerance, noise = (TOLERANCE, TOLERANCE / 10) if actual == wide else (TOLERANCE_16_BITS, TOLERANCE_16_BITS)
    if gap > tolerance or gap > max(before, noise):
        raise LawError(f"version {version}: the receiver's logprobs are {gap:.2g} from the learner's (before: {before:.2g})")
    return gap


def held(receiver: Receiver) -> AbstractContextManager[Any]:
    """A context in which an engine draws nothing, so that no token is of weights that are not checked. (What a server says
    meanwhile, it labels itself.)"""
    return getattr(receiver, "held", nullcontext)()


def _refuse_rounding(state: dict[str, torch.Tensor], receiver: Receiver) -> None:
    """Raise Unsupported for an engine whose network would round the weights. (A server says so itself: `Vllm.load`.)"""
    if (network := getattr(receiver, "network", None)) is None:
        return
    dtype = network.head.weight.dtype
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.dtype != dtype and tensor.dtype.itemsize >= dtype.itemsize:
            raise Unsupported(
                f"the engine holds {dtype} and {name} is {tensor.dtype}: load the engine's network in {tensor.dtype}, or "
                f"publish with Publisher(dtype={dtype})"
            )


def _gap(receiver: Receiver, probe: Probe | None) -> float:
    """The largest gap between the receiver's logprobs and the probe's. NaN counts as infinitely far."""
    if probe is None:
        return 0.0
    gap = (receiver.logprobs(probe.tokens).cpu() - torch.tensor(probe.logprobs)).abs().max().item()
    return gap if gap == gap else math.inf


def _widen(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for name, t in state.items()}


@torch.inference_mode()
def probe_logprobs(network: Network, tokens: Sequence[int]) -> torch.Tensor:
    """Logprobs float32 [len - 1] of a probe's tokens, as the learner computes them. InputError for text and a lone token."""
    if isinstance(tokens, str):
        raise InputError("a probe is made of tokens: engine.renderer.encode(text)")
    if len(tokens) < 2:
        raise InputError("a probe needs two tokens or more: the first is only read")
    run, view = torch.tensor(list(tokens), device=network.head.weight.device), Packed([len(tokens)])
    return network.logprobs(network.hidden(run, view.positions.to(run.device), view)[:-1], run[1:])[0]
