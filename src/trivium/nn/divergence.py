"""How far one distribution over tokens is from another, computed in chunks as logprobs are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trivium.nn.linear import linear
from trivium.nn.logprobs import chunks


def divergence(hidden: Tensor, teacher: Tensor, weight: Tensor, temperature: Tensor) -> Tensor:
    """KL(student || teacher) of each token, over the whole vocabulary, in nats: [N].

    Student and teacher are softmax(h @ weight.T / temperature) of `hidden` and `teacher`, both [N, d]; weight [vocabulary, d],
    temperature [N]. The teacher has no gradient. Backward computes a chunk's logits again, so no tensor of
    [N x vocabulary] exists.
    """
    parts = [
        checkpoint(_divergence, hidden[part], teacher[part], weight, temperature[part], use_reentrant=False)
        for part in chunks(temperature)
    ]
    return torch.cat(parts)


def _divergence(hidden: Tensor, teacher: Tensor, weight: Tensor, temperature: Tensor) -> Tensor:
    with torch.no_grad():
        target = _log_softmax(teacher, weight, temperature)
    own = _log_softmax(hidden, weight, temperature)
    return (own.exp() * (own - target)).sum(-1)


def _log_softmax(hidden: Tensor, weight: Tensor, temperature: Tensor) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        logits = linear(hidden.to(weight.dtype), weight)
    return (logits.to(temperature.dtype) / temperature[:, None]).log_softmax(-1)
