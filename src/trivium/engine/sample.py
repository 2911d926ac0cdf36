"""From logits to a token: temperature, top-k, top-p, by inverting the distribution at a number drawn beforehand."""

from __future__ import annotations

import torch

from trivium.trace import Sampling


def sample(
    logits: torch.Tensor, samplings: list[Sampling], draws: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens int64 [B], their logprobs float32 [B], and the probability mass kept by truncation float32 [B].

    logits float32 [B, V]; draws float64 [B] in [0, 1). The logprob is that of the whole distribution at the sampling
    temperature, whatever truncation left of it (law 4); greedy (temperature 0) records it at temperature 1.
    """
    temperature = torch.tensor([s.temperature or 1.0 for s in samplings])
    logprobs = torch.log_softmax(logits / temperature[:, None], -1)
    probs = logprobs.exp()
    cut = torch.tensor([bool(s.top_k) or s.top_p < 1 for s in samplings])
    if cut.any():
        probs = torch.stack([_truncate(row, s) for row, s in zip(probs, samplings, strict=True)])
    mass = probs.cumsum(-1, dtype=torch.float64)
    kept = mass[:, -1]
    drawn = torch.searchsorted(mass, (draws * kept)[:, None], right=True)[:, 0].clamp_max(logits.shape[1] - 1)
    greedy = torch.tensor([s.temperature == 0 for s in samplings])
    tokens = torch.where(greedy, logits.argmax(-1), drawn)
    # without truncation all mass was kept, though float32 probabilities add up to 1 only within some 1e-6
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0], torch.where(cut, kept, 1.0).float()


def _truncate(probs: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """probs [V] with everything outside top-k and top-p set to zero; the token that crosses top_p stays."""
    ordered, index = probs.sort(descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        keep[sampling.top_k :] = False
    if sampling.top_p < 1:
        keep &= ordered.cumsum(0) - ordered < sampling.top_p
    return torch.zeros_like(probs).scatter(0, index[keep], ordered[keep])
