"""From logits to a token: temperature, top-k, top-p, by inverting the distribution at a number drawn beforehand."""

from __future__ import annotations

import torch

from trivium.trace import Sampling

_BLOCK = 64  # tokens of the vocabulary whose mass is summed first; only the block that was hit is looked at in detail


def sample(
    logits: torch.Tensor, samplings: list[Sampling], draws: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw tokens int64 [B]; return them, their logprobs float32 [B], and the probability mass kept by truncation float32 [B].

    logits float32 [B, V], draws float64 [B] in [0, 1). The logprob is that of the whole distribution at the sampling
    temperature, whatever truncation left of it (law 4). Greedy sampling (temperature 0) records it at temperature 1.
    """
    temperatures = [s.temperature or 1.0 for s in samplings]
    plain = all(t == 1.0 for t in temperatures)
    scaled = logits if plain else logits / torch.tensor(temperatures, device=logits.device)[:, None]
    top = scaled.amax(-1, keepdim=True)
    mass = (scaled - top).exp_()
    sums = _running(mass)
    total = sums[:, -1]
    kept = torch.ones(len(samplings), device=logits.device)
    if cut := [row for row, s in enumerate(samplings) if s.top_k or s.top_p < 1]:
        for row in cut:
            mass[row] = _truncate(mass[row], samplings[row])
        sums = _running(mass)
        kept[cut] = (sums[:, -1] / total).float()[cut]
    tokens = _invert(mass, sums, draws)
    if greedy := [row for row, s in enumerate(samplings) if s.temperature == 0]:
        tokens[greedy] = logits[greedy].argmax(-1)
    logprobs = (scaled.gather(1, tokens[:, None]) - top)[:, 0] - total.log()
    return tokens, logprobs.float(), kept


def _blocks(mass: torch.Tensor) -> torch.Tensor:
    """mass [B, V] in blocks [B, n, _BLOCK], the last one filled up with zeros."""
    rest = -mass.shape[1] % _BLOCK
    return (torch.nn.functional.pad(mass, (0, rest)) if rest else mass).view(len(mass), -1, _BLOCK)


def _running(mass: torch.Tensor) -> torch.Tensor:
    """The running sums of mass over blocks, float64 [B, n]: the last one is all of it."""
    return _blocks(mass).sum(-1).double().cumsum(-1)


def _invert(mass: torch.Tensor, sums: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The token at which the running sum of mass [B, V] passes its share `draws` of all of it; int64 [B]."""
    rows = torch.arange(len(mass), device=mass.device)
    target = draws * sums[:, -1]
    block = _passes(sums, target)
    before = torch.where(block > 0, sums[rows, block - 1], 0.0)
    inside = _blocks(mass)[rows, block].double().cumsum(-1)
    return block * _BLOCK + _passes(inside, target - before)


def _passes(sums: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The first place where ascending sums [B, n] exceed `target` [B]. Where rounding left that a hair behind the end, it is
    the last place with any mass."""
    end = sums[:, -1]
    return (sums <= torch.minimum(target, end.nextafter(torch.zeros_like(end)))[:, None]).sum(-1)


def _truncate(mass: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """mass [V] with everything outside top-k and top-p set to zero. The token that crosses top_p stays."""
    ordered, index = mass.sort(descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        keep[sampling.top_k :] = False
    if sampling.top_p < 1:
        keep &= ordered.cumsum(0) - ordered < sampling.top_p * ordered.sum()
    return torch.zeros_like(mass).scatter(0, index[keep], ordered[keep])
