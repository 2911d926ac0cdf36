"""Attention over pages on a CUDA device: torch's FlexAttention, which reads a context's pages where they lie.

All pages are one long run of keys; a block of it is a page. The block mask says which pages a context reads, the mask itself
what of them: tokens that count for this context, at or left of the query. On a CPU the same code runs uncompiled, so that
it is tested without the device (what one H200 made of it: docs/engine.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as once
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from trivium.engine.cache import PAGE, WORTH, Cache, Lease, Row

_QUERIES = 1 << 30  # of a block: all that a context has, for one list of pages serves them, and one kernel any number


class Tables(NamedTuple):
    """What n queries of B contexts see of all P pages, on the cache's device. Lists are as FlexAttention has them: how many
    pages, int32 [B, 1, 1], and they first, int32 [B, 1, 1, the most that one can have]."""

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


class Readers:
    """B contexts with several new tokens each, `lengths` of them."""

    def __init__(self, cache: Cache, leases: Sequence[Lease], lengths: Sequence[int]) -> None:
        self._shape = (len(leases), _width(max(lengths)))
        row = torch.arange(len(leases)).repeat_interleave(torch.tensor(lengths))
        place = torch.cat([torch.arange(length) for length in lengths])
        at = torch.full(self._shape, -1)
        at[row, place] = torch.tensor([lease.length - n for lease, n in zip(leases, lengths, strict=True)])[row] + place
        self._row, self._place = row.to(cache.device), place.to(cache.device)
        self._mask = block_mask(tables(cache, leases, at))

    def attend(self, q, k, v, keys, values, scaling: float) -> torch.Tensor:
        """q [1, H, n, D], one context after the other, over their pages, where k and v stand already -> [n, H, D]."""
        filled = q.new_zeros(*self._shape, q.shape[1], q.shape[3])
        filled[self._row, self._place] = q[0].transpose(0, 1)
        out = _attend(filled.transpose(1, 2), keys, values, self._mask, scaling)
        return out.transpose(1, 2)[self._row, self._place]


def readers(cache: Cache, leases: Sequence[Lease], pasts, runs: Sequence[slice]) -> list[tuple[torch.Tensor, Readers]]:
    """Who attends for which places of the run: contexts of about as many new tokens read together."""
    lengths = [run.stop - run.start for run in runs]
    found = []
    for width in sorted({_width(length) for length in lengths}):
        chosen = [row for row, length in enumerate(lengths) if _width(length) == width]
        at = torch.cat([torch.arange(runs[row].start, runs[row].stop) for row in chosen]).to(cache.device)
        found.append((at, Readers(cache, [leases[row] for row in chosen], [lengths[row] for row in chosen])))
    return found


def _width(length: int) -> int:
    return 1 << (length - 1).bit_length()


def tables(cache: Cache, leases: Sequence[Lease | Row], at: torch.Tensor) -> Tables:
    """For queries at the positions `at` int64 [B, n] of their contexts, ascending; those at -1, behind them, see nothing."""
    sizes = np.array([len(lease.numbers) for lease in leases])
    row = np.repeat(np.arange(len(leases)), sizes)
    number = np.concatenate([lease.numbers for lease in leases])
    count = np.concatenate([lease.counts for lease in leases])
    start = np.cumsum(count) - count
    start -= start[np.cumsum(sizes) - sizes][row]  # of its own context
    whole = (count == PAGE) & (start + PAGE - 1 <= at[:, 0].numpy()[row])  # every query sees all of it: nothing to mask
    some = (count > 0) & ~whole
    most = -(-cache.context // WORTH) + 1  # pages of a context: of all but the last it has WORTH tokens and more
    listed = (_listed(row[kept], number[kept], (len(leases), most)) for kept in (some, whole))
    where = torch.from_numpy(np.stack([row, number, count, start])).to(cache.device)
    spread = [torch.zeros(len(leases), cache.size, dtype=torch.int64, device=cache.device) for _ in range(2)]
    for held, values in zip(spread, where[2:], strict=True):
        held[where[0], where[1]] = values
    return Tables(*spread, at.to(cache.device), *(each.to(cache.device) for each in chain.from_iterable(listed)))


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


def _listed(row: np.ndarray, number: np.ndarray, shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Chosen pages, and the rows that see them and ascend, as FlexAttention has them; `shape` is (B, the most of a row)."""
    count = np.bincount(row, minlength=shape[0]).astype(np.int32)
    pages = np.zeros(shape, np.int32)
    pages[row, np.arange(len(row)) - (np.cumsum(count) - count)[row]] = number
    return torch.from_numpy(count)[:, None, None], torch.from_numpy(pages)[:, None, None]


def _attend(q, keys, values, mask: BlockMask, scaling: float) -> torch.Tensor:
    """q [B, H, n, D] over pages [P, Hkv, PAGE, D], which on a CUDA device lie as [Hkv, P, PAGE, D]: nothing is copied."""
    keys, values = (held.transpose(0, 1).flatten(1, 2)[None] for held in (keys, values))
    q = q.clone(memory_format=torch.contiguous_format)  # strides of all sorts would have it compiled anew for each
    return _kernel(q.device.type)(q, keys, values, block_mask=mask, scale=scaling, enable_gqa=True)


@once
def _kernel(device: str):
    """Compiled for a device, without torch's other kernel for few queries: for the nano model's heads in fp32 torch 2.11 had
    none. Some numbers it compiles anew for (one row, one query, sizes that are by chance the same), more often than the 8 times
    after which it would give up."""
    if device != "cuda":
        return flex_attention
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return partial(torch.compile(flex_attention, dynamic=True), kernel_options={"FORCE_USE_FLEX_ATTENTION": True})
