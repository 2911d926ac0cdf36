"""Attention over pages on a CPU, in plain torch.

Attention over a context is split into parts. Each gives a product and the logarithm of its summed weights, by which the parts
are merged: softmax over a union is the mean of the softmaxes over its parts, weighted by exp(log-sum-exp). A page that many
contexts share is one part for all of them, so it is read once, by all their queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from trivium.engine.cache import PAGE, Cache, Lease, Row

_FEW = 8  # so many queries read a page one by one; for more, one product of matrices takes less time
_WIDTHS = 2 ** np.arange(20)  # queries of such a product: few different calls, and none much too wide
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # torch's own, with the log-sum-exp that it returns


class Reader:
    """A context with several new tokens. `past` are the pages before them, each with how many of its tokens count."""

    def __init__(self, past: Sequence[tuple[int, int]]) -> None:
        self._past = past

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        """q [1, H, n, D] over the past, and causally over the new k, v [1, Hkv, n, D] -> [n, H, D]."""
        new, new_weight = _flash(q, k, v, 0.0, True, scale=scaling)
        if not self._past:
            return new[0].transpose(0, 1)
        old_k = torch.cat([keys[page, :, :n].transpose(1, 2) for page, n in self._past], 2)  # as they lie: [Hkv, D, n]
        old_k = old_k.flatten(0, 1).t().contiguous().unflatten(1, old_k.shape[:2]).transpose(0, 1)
        old_v = torch.cat([values[page, :, :n] for page, n in self._past], 1)
        old, old_weight = _flash(q, old_k[None], old_v[None], 0.0, False, scale=scaling)
        share = torch.sigmoid(old_weight - new_weight).to(new.dtype)[..., None]  # exp(a) / (exp(a) + exp(b))
        return torch.lerp(new, old, share)[0].transpose(0, 1)


def readers(
    cache: Cache, leases: Sequence[Lease], pasts: Sequence[Sequence[tuple[int, int]]], runs: Sequence[slice]
) -> list[tuple[slice, Reader]]:
    """The readers, each with its places of the run: every context reads by itself."""
    return [(run, Reader(past)) for run, past in zip(runs, pasts, strict=True)]


class Speakers:
    """The pages of B queries (a speaker's token, its guesses, the last token of a prompt). Each page is a part of a context.

    `table` int64 [B, P] says which of all parts, those of `Few` and then those of `Many`, are a query's; `absent` [B, P] fills
    short rows.
    """

    def __init__(self, cache: Cache, contexts: Sequence[Row]) -> None:
        depth = np.array([len(context.numbers) for context in contexts])
        pages = np.fromiter(chain.from_iterable(context.numbers for context in contexts), np.int64, depth.sum())
        counts = np.fromiter(chain.from_iterable(context.counts for context in contexts), np.int64, depth.sum())
        rows = np.repeat(np.arange(len(contexts)), depth)
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
            queries, visible = np.zeros((2, lines[-1] + 1, size), np.int64)
            queries[lines, lanes], visible[lines, lanes] = rows[pairs], counts[pairs]
            self._calls.append((Many if size > 1 else Few)(cache, pages[pairs[lanes == 0]], queries, visible))
            part[pairs] = total + lines * size + lanes
            total += queries.size
        table = np.zeros((len(contexts), depth.max()), np.int64)
        absent = np.arange(depth.max()) >= depth[:, None]
        table[~absent] = part
        self._table, self._absent = torch.from_numpy(table), torch.from_numpy(absent)[:, :, None, None]

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """q [B, H, D] -> [B, H, D]."""
        grouped = (q * scaling).unflatten(1, (keys.shape[1], -1))  # the heads that share keys ask together
        parts = [call.attend(grouped, keys.transpose(2, 3), values) for call in self._calls]
        outs, weights = (torch.cat(x) if len(x) > 1 else x[0] for x in zip(*parts, strict=True))
        shares = weights[self._table].masked_fill_(self._absent, float("-inf")).softmax(1)  # [B, P, Hkv, G]
        return (outs[self._table] * shares[..., None].to(outs.dtype)).sum(1).view(q.shape)


class Few:
    """n pages that are read by one query each. What a page gives is a sum of a table's rows, a bag of embeddings.

    That kernel fetches the next rows while it adds, and reads any pages in one call. A product of matrices of a row or two does
    neither.
    """

    def __init__(self, cache: Cache, pages: np.ndarray, rows: np.ndarray, visible: np.ndarray) -> None:
        """pages [n], rows and visible [n, 1]: the queries and how many of the page's tokens each sees."""
        _, heads, _, size = cache.keys[0].shape
        self._rows, self._mask = torch.from_numpy(rows[:, 0]), _mask(cache, visible)
        first = torch.from_numpy(pages[:, None] * heads + np.arange(heads)).to(torch.int32).view(-1, 1, 1)
        of_head = lambda n: (first * n + torch.arange(n, dtype=torch.int32)).expand(-1, cache.group, -1).reshape(-1, n)  # noqa: E731
        self._keys, self._values = of_head(size), of_head(PAGE)  # which rows: int32 [n x Hkv x G, D] and [.., PAGE]

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q [B, Hkv, G, D] -> what each page gives [n, Hkv, G, D], and the log-sum-exp of its scores [n, Hkv, G]."""
        queries = q[self._rows]
        scores = embedding_bag(self._keys, keys.flatten(0, 2), mode="sum", per_sample_weights=queries.flatten(0, 2))
        shares, weight = _softmax(scores.view(*queries.shape[:3], PAGE).add_(self._mask))
        out = embedding_bag(self._values, values.flatten(0, 2), mode="sum", per_sample_weights=shares.flatten(0, 2))
        return out.view(queries.shape), weight


class Many:
    """m pages that are each read by up to S queries at once."""

    def __init__(self, cache: Cache, pages: np.ndarray, rows: np.ndarray, visible: np.ndarray) -> None:
        """pages [m], rows and visible [m, S]: as above. Where fewer than S queries read a page, the rest is never looked at."""
        self._pages, self._rows = torch.from_numpy(pages), torch.from_numpy(rows)
        self._mask = _mask(cache, visible.repeat(cache.group, axis=1))

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As above, [m x S, Hkv, G, D] and [m x S, Hkv, G]."""
        queries = q[self._rows].transpose(1, 2).flatten(2, 3)  # [m, Hkv, S x G, D]
        shares, weight = _softmax((queries @ keys[self._pages]).add_(self._mask))
        return self._by_query(shares @ values[self._pages]), self._by_query(weight)

    def _by_query(self, x: torch.Tensor) -> torch.Tensor:
        """[m, Hkv, S x G, ...] as [m x S, Hkv, G, ...]."""
        return x.unflatten(2, (self._rows.shape[1], -1)).transpose(1, 2).flatten(0, 1)


def _mask(cache: Cache, visible: np.ndarray) -> torch.Tensor:
    """The mask to be added to scores: visible [n, queries] -> [n, 1, queries, PAGE]."""
    hidden = torch.from_numpy(np.arange(PAGE) >= visible[:, None, :, None])
    return torch.zeros(hidden.shape, dtype=cache.dtype).masked_fill_(hidden, float("-inf"))


def _softmax(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over the last dimension, and the log-sum-exp: the largest score less the log of its share."""
    shares = scores.softmax(-1, dtype=torch.float64 if scores.dtype == torch.float64 else torch.float32)
    return shares.to(scores.dtype), scores.amax(-1) - shares.amax(-1).log()
