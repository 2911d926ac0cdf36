"""What the tokens of one forward pass see: each its own context's pages, and of its own run what stands left of it.

    token      a | b b | c c c c | d d
    context    A   B     C         D         first speakers (a token and the guesses after it), then readers

There is one interface and two kernels: `products` in plain torch on a CPU, `flex` (torch's FlexAttention) on a CUDA device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from types import ModuleType

import numpy as np
import torch

from trivium.engine import flex, products
from trivium.engine.cache import Cache, Lease, Row


class Contexts:
    """A view (nn.View) of `leases`, each with some new tokens, all in one run [N]. The first `speakers` of them have few new
    tokens, in one page each.

    It extends the leases by those tokens. Their keys and values are written layer by layer, before a layer reads them.
    `drawing` says of each context whether a next token is drawn from it. The last layer is then computed for those alone, at
    the places `at` int64 [M] of the run: every token of a speaker, the last one of a reader.
    """

    def __init__(
        self,
        cache: Cache,
        leases: Sequence[Lease],
        tokens: Sequence[Sequence[int]],
        speakers: int = 0,
        drawing: Sequence[bool] | None = None,
        kernel: ModuleType | None = None,
    ) -> None:
        kernel = kernel or (flex if cache.device.type == "cuda" else products)
        self._cache, self._last = cache, len(cache.keys) - 1
        lengths = [len(new) for new in tokens]
        starts = [lease.length for lease in leases]
        self.positions = torch.from_numpy(_ranges(starts, lengths)).to(cache.device)
        self._speaking = sum(lengths[:speakers])  # tokens of speakers
        pasts = [list(zip(lease.numbers, lease.counts, strict=True)) for lease in leases[speakers:]]
        where = [cache.extend(lease, new) for lease, new in zip(leases, tokens, strict=True)]
        places = (torch.tensor(list(chain.from_iterable(x))).to(cache.device) for x in zip(*where, strict=True))
        self.pages, self.places = places
        rows = [row for lease, n in zip(leases[:speakers], lengths, strict=False) for row in _rows(lease, n)]
        self.speakers = kernel.Speakers(cache, rows) if rows else None
        ends = np.cumsum(lengths)[speakers:].tolist()
        runs = [slice(end - length, end) for end, length in zip(ends, lengths[speakers:], strict=True)]
        self._readers = kernel.readers(cache, leases[speakers:], pasts, runs)
        self.at = None
        if drawing is not None:
            last = [
                (lease, end) for lease, end, draws in zip(leases[speakers:], ends, drawing[speakers:], strict=True) if draws
            ]
            at = [*range(self._speaking), *(end - 1 for _, end in last)]
            self.at = torch.tensor(at, dtype=torch.int64).to(cache.device)
            rows += [row for lease, _ in last for row in _rows(lease, 1)]
            self._draw = kernel.Speakers(cache, rows) if last else self.speakers

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
        """q [1, H, N, D], k and v [1, Hkv, N, D] -> [1, N, H, D]."""
        keys, values = write(self._cache, layer, self.pages, self.places, k, v)
        out = q.new_zeros(q.shape[2], q.shape[1], q.shape[3])
        if self.at is not None and layer == self._last:
            if self._draw:
                out[self.at] = self._draw.attend(q[0][:, self.at].transpose(0, 1), keys, values, scaling)
            return out[None]
        if self.speakers:
            queries = q[0, :, : self._speaking].transpose(0, 1)
            out[: self._speaking] = self.speakers.attend(queries, keys, values, scaling)
        for run, reader in self._readers:
            out[run] = reader.attend(q[:, :, run], k[:, :, run], v[:, :, run], keys, values, scaling)
        return out[None]


def write(
    cache: Cache, layer: int, pages: torch.Tensor, places: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write k and v [1, Hkv, N, D] to the places in the pages, int64 [N] each. Returns all of the layer's keys and values."""
    keys, values = cache.keys[layer], cache.values[layer]
    keys[pages, :, places] = k[0].transpose(0, 1)
    values[pages, :, places] = v[0].transpose(0, 1)
    return keys, values


def _rows(lease: Lease, new: int) -> list[Row]:
    """What each of the `new` last tokens of a lease sees: its pages, and of the last page itself and what stands before it."""
    last = lease.counts[-1]
    return [Row(lease.numbers, [*lease.counts[:-1], last - after]) for after in reversed(range(new))]


def _ranges(starts: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
    """start, start + 1, ... of each run, laid end to end: int64 [sum of lengths]."""
    counts = np.asarray(lengths, np.int64)
    if not len(counts):
        return np.zeros(0, np.int64)
    before = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return np.arange(counts.sum()) + np.repeat(np.asarray(starts, np.int64) - before, counts)
