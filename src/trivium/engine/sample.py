"""From logits to a token: temperature, top-k, top-p, by inverting the distribution at a number drawn beforehand."""

from __future__ import annotations

import torch

from trivium.trace import Sampling

_BLOCK = 64  # tokens of the vocabulary whose mass is summed first; only the block that was hit is looked at in detail


def sample(
    logits: torch.Tensor, samplings: list[Sampling], draws: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens int64 [B], their logprobs float32 [B], and the probability mass kept by truncation float32 [B].

    logits float32 [B, V]; draws float64 [B] in [0, 1). The logprob is that of the whole distribution at the sampling
    temperature, whatever truncation left of it (law 4); greedy (temperature 0) records it at temperature 1.
    """
    warm = [s.temperature or 1.0 for s in samplings]
    scaled = logits if all(t == 1.0 for t in warm) else logits / torch.tensor(warm)[:, None]
    top = scaled.amax(-1, keepdim=True)
    mass = (scaled - top).exp_()
    total = whole = mass.sum(-1, dtype=torch.float64)
    kept = torch.ones(len(samplings))
    if cut := [row for row, s in enumerate(samplings) if s.top_k or s.top_p < 1]:
        for row in cut:
            mass[row] = _truncate(mass[row], samplings[row])
        total = mass.sum(-1, dtype=torch.float64)
        kept[cut] = (total / whole).float()[cut]
    tokens = _invert(mass, draws)
    if greedy := [row for row, s in enumerate(samplings) if s.temperature == 0]:
        tokens[greedy] = logits[greedy].argmax(-1)
    logprobs = (scaled.gather(1, tokens[:, None]) - top)[:, 0] - whole.log()
    return tokens, logprobs.float(), kept


def _invert(mass: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The token at which the running sum of mass [B, V] passes its share `draws` of all of it; int64 [B]."""
    rows, rest = torch.arange(len(mass)), -mass.shape[1] % _BLOCK
    blocks = torch.nn.functional.pad(mass, (0, rest)).view(len(mass), -1, _BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    wanted = draws * sums[:, -1]
    block = _passes(sums, wanted)
    before = torch.where(block > 0, sums[rows, block - 1], 0.0)
    inside = blocks[rows, block].double().cumsum(-1)
    return block * _BLOCK + _passes(inside, wanted - before)


def _passes(sums: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The first place where ascending sums [B, n] exceed `wanted` [B]; where rounding left it a hair behind the end, the
    last place with any mass."""
    end = sums[:, -1]
    return torch.searchsorted(sums, torch.minimum(wanted, end.nextafter(torch.zeros_like(end)))[:, None], right=True)[:, 0]


def _truncate(mass: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """mass [V] with everything outside top-k and top-p set to zero; the token that crosses top_p stays."""
    ordered, index = mass.sort(descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        keep[sampling.top_k :] = False
    if sampling.top_p < 1:
        keep &= ordered.cumsum(0) - ordered < sampling.top_p * ordered.sum()
    return torch.zeros_like(mass).scatter(0, index[keep], ordered[keep])
