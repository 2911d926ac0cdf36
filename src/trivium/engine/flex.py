"""Attention over pages on a CUDA device: torch's FlexAttention, which reads a context's pages where they lie.

All pages are one long run of keys; a block of it is a page. The block mask says which pages a context reads, the mask itself
what of them: tokens that count for this context, at or left of the query. On a CPU the same code runs uncompiled, so that
it is tested without the device (what one H100 made of it: docs/engine.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as once
from functools import partial
from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from trivium.engine.cache import PAGE, Cache, Lease, Row

_QUERIES = 128  # of a block


class Tables(NamedTuple):
    """What n queries of B contexts see of all P pages, on the cache's device. Lists are as FlexAttention has them: how many
    pages, int32 [B, 1, blocks of queries], and they first, [B, 1, blocks, P]."""

    count: torch.Tensor  # int64 [B, P]: how many of a page's tokens count
    start: torch.Tensor  # int64 [B, P]: the position of its first
    at: torch.Tensor  # int64 [B, n]: positions of the queries
    some: torch.Tensor  # how many pages it must mask
    some_pages: torch.Tensor
    whole: torch.Tensor  # how many all queries see whole
    whole_pages: torch.Tensor


class Speakers:
    """B queries, each with pages of its own."""

    def __init__(self, cache: Cache, seen: Sequence[Row]) -> None:
        self._take(tables(cache, seen, torch.tensor([[sum(row.counts) - 1] for row in seen])))

    @classmethod
    def over(cls, tables: Tables) -> Speakers:
        """Of queries whose tables are there, and may be changed in place."""
        self = cls.__new__(cls)
        self._take(tables)
        return self

    def _take(self, tables: Tables) -> None:
        self.tables, self._mask = tables, block_mask(tables)

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """q [B, H, D] -> [B, H, D]."""
        return _attend(q[:, :, None], keys, values, self._mask, scaling)[:, :, 0]


class Reader:
    """A context with several new tokens; `past`: the pages that it held before them, and how many tokens of each."""

    def __init__(self, cache: Cache, lease: Lease, past: Sequence[tuple[int, int]]) -> None:
        begin = sum(count for _, count in past)
        self._mask = block_mask(tables(cache, [lease], torch.arange(begin, lease.length)[None]))

    def attend(self, q, k, v, keys, values, scaling: float) -> torch.Tensor:
        """q [1, H, n, D] over the context's pages, where k and v stand already -> [n, H, D]."""
        return _attend(q, keys, values, self._mask, scaling)[0].transpose(0, 1)


def tables(cache: Cache, leases: Sequence[Lease | Row], at: torch.Tensor) -> Tables:
    """For queries at the positions `at` int64 [B, n] of their contexts."""
    count = torch.zeros(len(leases), cache.size, dtype=torch.int64)
    start = torch.zeros(len(leases), cache.size, dtype=torch.int64)
    for row, lease in enumerate(leases):
        counts = torch.tensor(lease.counts)
        count[row, lease.numbers], start[row, lease.numbers] = counts, counts.cumsum(0) - counts
    whole = (count == PAGE) & (start + PAGE - 1 <= at.amin(1, keepdim=True))  # every query sees all of it: nothing to mask
    some = (count > 0) & ~whole
    lists = (each for pages in (some, whole) for each in _listed(pages, -(-at.shape[1] // _QUERIES)))
    return Tables(*(each.to(cache.device) for each in (count, start, at, *lists)))


def block_mask(tables: Tables) -> BlockMask:
    """The tables as FlexAttention takes them. It reads them where they stand, whenever it is asked."""
    count, start, at, *lists = tables

    def seen(row, head, query, key):
        page, place = key // PAGE, key % PAGE
        return (place < count[row, page]) & (start[row, page] + place <= at[row, query])

    lengths = (at.shape[1], count.shape[1] * PAGE)
    return BlockMask.from_kv_blocks(
        *lists, BLOCK_SIZE=(_QUERIES, PAGE), mask_mod=seen, seq_lengths=lengths, compute_q_blocks=False
    )


def _listed(pages: torch.Tensor, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Chosen pages bool [B, P] as FlexAttention has them: how many, int32 [B, 1, blocks], and they first, [B, 1, blocks, P]."""
    number = pages.sum(1, dtype=torch.int32)
    first = pages.int().argsort(dim=1, descending=True, stable=True).int()
    spread = lambda x: x[:, None, None].expand(-1, 1, blocks, *x.shape[1:]).contiguous()  # noqa: E731
    return spread(number), spread(first)


def _attend(q, keys, values, mask: BlockMask, scaling: float) -> torch.Tensor:
    """q [B, H, n, D] over pages [P, Hkv, PAGE, D], which on a CUDA device lie as [Hkv, P, PAGE, D]: nothing is copied."""
    keys, values = (held.transpose(0, 1).flatten(1, 2)[None] for held in (keys, values))
    return _kernel(q.device.type)(q, keys, values, block_mask=mask, scale=scaling, enable_gqa=True)


@once
def _kernel(device: str):
    """Compiled for a device, without torch's other kernel for few queries: for the nano model's heads in fp32 torch 2.11 had
    none, and it compiled anew where a run became shorter or longer than 128."""
    if device != "cuda":
        return flex_attention
    return partial(torch.compile(flex_attention, dynamic=True), kernel_options={"FORCE_USE_FLEX_ATTENTION": True})
