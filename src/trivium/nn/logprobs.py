"""Log-probabilities of tokens, computed in chunks: forward keeps one number a token, backward computes the logits again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trivium.nn.linear import add_product, linear

CHUNK = {"cpu": 128, "cuda": 4096}
"""How many tokens' logits exist at one time, [CHUNK x vocabulary]. On a CPU they fit its cache, which measured fastest."""


def logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
    """Return log softmax(hidden @ weight.T / temperature)[target] and the entropy of that softmax, for each token.

    hidden [N, d], weight [vocabulary, d], targets int64 [N], temperature > 0 or [N]. Both results are float32 [N]
    (float64 where the weight is); the entropy, in nats, carries no gradient. Products run in the weight's dtype, also
    under autocast.
    """
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    inverse = torch.as_tensor(temperature, dtype=wide, device=hidden.device).expand(len(targets)).reciprocal()
    with torch.autocast(hidden.device.type, enabled=False):
        return _Logprobs.apply(hidden.to(weight.dtype), weight, targets, inverse)


class _Logprobs(torch.autograd.Function):
    """d logp / d logits = (onehot - p) / temperature, so backward needs the chunk's logits and log-partition."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        logp, entropy, partition = (torch.empty_like(inverse) for _ in range(3))
        for part in chunks(targets):
            logits = _logits(hidden[part], weight, inverse[part])
            partition[part] = torch.logsumexp(logits, -1)
            logp[part] = logits.gather(-1, targets[part, None])[:, 0] - partition[part]
            probs = (logits - partition[part, None]).exp_()
            # a logit of -inf has probability 0 and adds 0 to the mean logit
            entropy[part] = partition[part] - (probs.mul_(logits)).nan_to_num_(0.0).sum(-1)
        ctx.save_for_backward(hidden, weight, targets, inverse, partition)
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, weight, targets, inverse, partition = ctx.saved_tensors
        grad, _ = grads  # the entropy has none
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for part in chunks(targets):
            delta = (_logits(hidden[part], weight, inverse[part]) - partition[part, None]).exp_()
            scale = (grad[part] * inverse[part])[:, None]
            delta.mul_(-scale).scatter_add_(-1, targets[part, None], scale)
            delta = delta.to(weight.dtype)
            grad_hidden[part] = linear(delta, weight.T)
            if grad_weight is not None:
                add_product(grad_weight, delta.T, hidden[part])
        return grad_hidden, grad_weight, None, None


def _logits(hidden: Tensor, weight: Tensor, inverse: Tensor) -> Tensor:
    return linear(hidden, weight).to(inverse.dtype).mul_(inverse[:, None])


def chunks(targets: Tensor) -> list[slice]:
    """Slices of at most CHUNK tokens each."""
    size = CHUNK.get(targets.device.type, 1024)
    return [slice(start, start + size) for start in range(0, len(targets), size)]
