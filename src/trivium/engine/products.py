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
from torch.nn.functional import embedding_bag

from trivium.engine.cache import PAGE, Cache, Lease, Row

_FEW = 8  # queries that read a page one by one; of more, one product of matrices takes less time
_WIDTHS = 2 ** np.arange(20)  # queries of such a product: few different calls, and none much too wide
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # torch's own, with the log-sum-exp that it returns


class Reader:
    """A context with several new tokens; `past`: the pages that it held before them, and how many tokens of each."""

    def __init__(self, past: Sequence[tuple[int, int]]) -> None:
        self._past = past

    def attend(self, q, k, v, keys, values, scaling: float) -> torch.Tensor:
        """q [1, H, n, D] over the past, and causally over the new k, v [1, Hkv, n, D] -> [n, H, D]."""
        own, own_weight = _flash(q, k, v, 0.0, True, scale=scaling)
        if not self._past:
            return own[0].transpose(0, 1)
        old_k = torch.cat([keys[page, :, :n].transpose(1, 2) for page, n in self._past], 2)  # as they lie: [Hkv, D, n]
        old_k = old_k.flatten(0, 1).t().contiguous().unflatten(1, old_k.shape[:2]).transpose(0, 1)
        old_v = torch.cat([values[page, :, :n] for page, n in self._past], 1)
        old, old_weight = _flash(q, old_k[None], old_v[None], 0.0, False, scale=scaling)
        share = torch.sigmoid(old_weight - own_weight).to(own.dtype)[..., None]  # exp(a) / (exp(a) + exp(b))
        return torch.lerp(own, old, share)[0].transpose(0, 1)


def readers(cache: Cache, leases: Sequence[Lease], pasts, runs: Sequence[slice]) -> list[tuple[slice, Reader]]:
    """Who attends for which places of the run: each context by itself."""
    return [(run, Reader(past)) for run, past in zip(runs, pasts, strict=True)]


class Speakers:
    """The pages of B queries (a speaker's token, its guesses, the last token of a prompt): a part of its context each.

    `table` int64 [B, P]: which of all parts, those of `Few` and then those of `Many`, are a query's; `absent` [B, P] fills
    short rows.
    """

    def __init__(self, cache: Cache, seen: Sequence[Row]) -> None:
        depth = np.array([len(row.numbers) for row in seen])
        pages = np.fromiter(chain.from_iterable(row.numbers for row in seen), np.int64, depth.sum())
        counts = np.fromiter(chain.from_iterable(row.counts for row in seen), np.int64, depth.sum())
        rows = np.repeat(np.arange(len(seen)), depth)
        order = np.argsort(pages, kind="stable")
        _, sharers = np.unique(pages[order], return_counts=True)
        width = np.where(sharers > _FEW, _WIDTHS[np.searchsorted(_WIDTHS, sharers)], 1)
        part = np.empty(len(pages), np.int64)
        total = 0
        self._calls: list[Few | Many] = []
        for size in np.unique(width):
            pairs = order[np.repeat(width == size, sharers)]
            lanes = np.concatenate([np.arange(n) for n in sharers[width == size]]) if size > 1 else np.zeros_like(pairs)
            lines = np.cumsum(lanes == 0) - 1
            asked, visible = np.zeros((2, lines[-1] + 1, size), np.int64)
            asked[lines, lanes], visible[lines, lanes] = rows[pairs], counts[pairs]
            self._calls.append((Many if size > 1 else Few)(cache, pages[pairs[lanes == 0]], asked, visible))
            part[pairs] = total + lines * size + lanes
            total += asked.size
        table = np.zeros((len(seen), depth.max()), np.int64)
        absent = np.arange(depth.max()) >= depth[:, None]
        table[~absent] = part
        self._table, self._absent = torch.from_numpy(table), torch.from_numpy(absent)[:, :, None, None]

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """q [B, H, D] -> [B, H, D]."""
        grouped = (q * scaling).unflatten(1, (keys.shape[1], -1))  # the heads that share keys ask together
        found = [call.attend(grouped, keys.transpose(2, 3), values) for call in self._calls]
        outs, weights = (torch.cat(x) if len(x) > 1 else x[0] for x in zip(*found, strict=True))
        shares = weights[self._table].masked_fill_(self._absent, float("-inf")).softmax(1)  # [B, P, Hkv, G]
        return (outs[self._table] * shares[..., None].to(outs.dtype)).sum(1).view(q.shape)


class Few:
    """Pages that are read by one query at a time, and n of both: what a page gives is a sum of a table's rows, a bag of
    embeddings. Its kernel fetches the next rows while it adds, and goes to any pages in one call; one of matrices, for a
    matrix of a row or two, does neither."""

    def __init__(self, cache: Cache, pages: np.ndarray, rows: np.ndarray, visible: np.ndarray) -> None:
        """pages [n], rows and visible [n, 1]: the queries and how many of the page's tokens each sees."""
        _, heads, _, size = cache.keys[0].shape
        self._rows, self._mask = torch.from_numpy(rows[:, 0]), _mask(cache, visible)
        first = torch.from_numpy(pages[:, None] * heads + np.arange(heads)).to(torch.int32).view(-1, 1, 1)
        of_head = lambda n: (first * n + torch.arange(n, dtype=torch.int32)).expand(-1, cache.group, -1).reshape(-1, n)  # noqa: E731
        self._keys, self._values = of_head(size), of_head(PAGE)  # which rows: int32 [n x Hkv x G, D] and [.., PAGE]

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q [B, Hkv, G, D] -> what each page gives [n, Hkv, G, D], and the log-sum-exp of its scores [n, Hkv, G]."""
        asked = q[self._rows]
        scores = embedding_bag(self._keys, keys.flatten(0, 2), mode="sum", per_sample_weights=asked.flatten(0, 2))
        shares, weight = _softmax(scores.view(*asked.shape[:3], PAGE).add_(self._mask))
        out = embedding_bag(self._values, values.flatten(0, 2), mode="sum", per_sample_weights=shares.flatten(0, 2))
        return out.view(asked.shape), weight


class Many:
    """m pages that are each read by up to S queries at once."""

    def __init__(self, cache: Cache, pages: np.ndarray, rows: np.ndarray, visible: np.ndarray) -> None:
        """pages [m], rows and visible [m, S]: as above; where fewer than S ask, what the rest are is never looked at."""
        self._pages, self._rows = torch.from_numpy(pages), torch.from_numpy(rows)
        self._mask = _mask(cache, visible.repeat(cache.group, axis=1))

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As above, [m x S, Hkv, G, D] and [m x S, Hkv, G]."""
        asked = q[self._rows].transpose(1, 2).flatten(2, 3)  # [m, Hkv, S x G, D]
        shares, weight = _softmax((asked @ keys[self._pages]).add_(self._mask))
        found = (shares @ values[self._pages], weight)
        return tuple(x.unflatten(2, (self._rows.shape[1], -1)).transpose(1, 2).flatten(0, 1) for x in found)


def _mask(cache: Cache, visible: np.ndarray) -> torch.Tensor:
    """What is added to scores: visible [n, queries] -> [n, 1, queries, PAGE]."""
    hidden = torch.from_numpy(np.arange(PAGE) >= visible[:, None, :, None])
    return torch.zeros(hidden.shape, dtype=cache.dtype).masked_fill_(hidden, float("-inf"))


def _softmax(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over the last dimension, and the log-sum-exp: the largest score less the log of its share."""
    shares = scores.softmax(-1, dtype=torch.float64 if scores.dtype == torch.float64 else torch.float32)
    return shares.to(scores.dtype), scores.amax(-1) - shares.amax(-1).log()
