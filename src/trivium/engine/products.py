"""Attention over pages on a CPU, in plain torch.

Attention over a context is split into parts, each giving a product and the logarithm of its summed weights, and the parts are
merged by those: softmax over a union is the mean of the softmaxes over its parts, weighted by exp(log-sum-exp). A page that
many contexts share is one part for all of them: it is read once, by all their queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from trivium.engine.cache import PAGE, Cache, Lease, Row

_WIDTHS = 2 ** np.arange(20)  # queries of a product: few different calls, and none much too wide
_PLACED = 8  # up to this width a page is read where it lies, which pays for the calls; a wider product pays for a copy
_GAP = 4  # pages of others read in passing, rather than beginning a new call behind them: a call costs as much
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # torch's own, with the log-sum-exp that it returns


class Reader:
    """A context with several new tokens; `past`: the pages that it held before them, and how many tokens of each."""

    def __init__(self, cache: Cache, lease: Lease, past: Sequence[tuple[int, int]]) -> None:
        self._past = past

    def attend(self, q, k, v, keys, values, scaling: float) -> torch.Tensor:
        """q [1, H, n, D] over the past, and causally over the new k, v [1, Hkv, n, D] -> [n, H, D]."""
        own, own_weight = _flash(q, k, v, 0.0, True, scale=scaling)
        if not self._past:
            return own[0].transpose(0, 1)
        old_k, old_v = (torch.cat([held[page, :, :n] for page, n in self._past], 1)[None] for held in (keys, values))
        old, old_weight = _flash(q, old_k, old_v, 0.0, False, scale=scaling)
        share = torch.sigmoid(old_weight - own_weight).to(own.dtype)[..., None]  # exp(a) / (exp(a) + exp(b))
        return torch.lerp(own, old, share)[0].transpose(0, 1)


class Speakers:
    """The pages of B queries, arranged by how many share a page: a speaker's token and its guesses, contexts with one prompt.

    `calls`: (pages, rows [m, S], mask) for one product each: m pages, S queries on each. `table` int64 [B, P]: which
    (page, query) of all calls, laid end to end, are a query's parts; `absent` [B, P] fills short rows.
    """

    def __init__(self, cache: Cache, seen: Sequence[Row]) -> None:
        depth = np.array([len(row.numbers) for row in seen])
        pages = np.fromiter(chain.from_iterable(row.numbers for row in seen), np.int64, depth.sum())
        counts = np.fromiter(chain.from_iterable(row.counts for row in seen), np.int64, depth.sum())
        rows = np.repeat(np.arange(len(seen)), depth)
        order = np.argsort(pages, kind="stable")
        number, first, sharers = np.unique(pages[order], return_index=True, return_counts=True)
        width = _WIDTHS[np.searchsorted(_WIDTHS, sharers)]
        self.calls: list[tuple] = []
        part = np.empty(len(pages), np.int64)
        total = 0
        for size in np.unique(width):
            chosen = np.flatnonzero(width == size)
            for run in _runs(number[chosen]) if size <= _PLACED else [slice(0, len(chosen))]:
                mine = chosen[run]
                (read, asked, hidden), of_pair, pairs = _call(
                    number[mine], first[mine], sharers[mine], int(size), order, rows, counts
                )
                part[pairs] = total + of_pair
                total += asked.numel()
                hidden = torch.from_numpy(hidden.repeat(cache.group if size > 1 else 1, axis=1))[:, None]
                mask = torch.zeros(hidden.shape, dtype=cache.dtype).masked_fill_(hidden, float("-inf"))
                self.calls.append((read, asked, mask))
        table = np.zeros((len(seen), depth.max()), np.int64)
        absent = np.arange(depth.max()) >= depth[:, None]
        table[~absent] = part
        self._table, self._absent = torch.from_numpy(table), torch.from_numpy(absent)[:, :, None, None]

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """q [B, H, D] -> [B, H, D]."""
        grouped = q.reshape(q.shape[0], keys.shape[1], -1, q.shape[2])  # the heads that share keys are queries of one product
        found = [self._product(call, grouped, keys, values, scaling) for call in self.calls]
        outs, weights = (torch.cat(x) if len(x) > 1 else x[0] for x in zip(*found, strict=True))
        shares = weights[self._table].masked_fill_(self._absent, float("-inf")).softmax(1)  # [B, P, Hkv, G]
        return (outs[self._table] * shares[..., None].to(outs.dtype)).sum(1).view(q.shape)

    @staticmethod
    def _product(call, q, keys, values, scaling) -> tuple[torch.Tensor, torch.Tensor]:
        """Products [m x S, Hkv, G, D] and their log-sum-exps [m x S, Hkv, G] of one call."""
        pages, rows, mask = call
        (m, wide), (_, heads, group, size) = rows.shape, q.shape
        asked = q[rows].transpose(1, 2).reshape(m, heads, wide * group, size)
        out, weight = _flash(asked, keys[pages], values[pages], 0.0, False, attn_mask=mask, scale=scaling)
        out = out.view(m, heads, wide, group, size).transpose(1, 2)
        weight = weight.view(m, heads, wide, group).transpose(1, 2)
        return out.reshape(-1, heads, group, size), weight.reshape(-1, heads, group)


def _call(number, first, sharers, wide, order, rows, counts):
    """One product's (pages, rows, mask); the place of each of its pairs among its parts; and which pairs those are."""
    lane = np.concatenate([np.arange(n) for n in sharers]) if wide > 1 else np.zeros(len(number), np.int64)
    pairs = order[np.repeat(first, sharers) + lane]
    if wide <= _PLACED:  # read where they are, with whatever stands between
        pages, height = slice(int(number[0]), int(number[-1]) + 1), int(number[-1] - number[0]) + 1
        line = np.repeat(number - number[0], sharers)
    else:
        pages, line, height = torch.from_numpy(number), np.repeat(np.arange(len(number)), sharers), len(number)
    asked, seen = np.zeros((height, wide), np.int64), np.full((height, wide), PAGE)
    asked[line, lane], seen[line, lane] = rows[pairs], counts[pairs]
    hidden = np.arange(PAGE) >= seen[:, :, None]  # [m, S, PAGE]
    return (pages, torch.from_numpy(asked), hidden), line * wide + lane, pairs


def _runs(numbers: np.ndarray) -> list[slice]:
    """Ascending page numbers in runs with small gaps only."""
    cuts = np.flatnonzero(np.diff(numbers) > _GAP) + 1
    return [slice(a, b) for a, b in zip([0, *cuts], [*cuts, len(numbers)], strict=True)]
