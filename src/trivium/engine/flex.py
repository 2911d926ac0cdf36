"""Attention over pages on a CUDA device: torch's FlexAttention, which reads a context's pages where they lie.

All pages are one long run of keys, and a page is a block of it. The block mask says which pages a context reads. The mask
itself says which of their tokens: those that count for this context, at or left of the query. On a CPU the same code runs
uncompiled, so that it is tested without the device (docs/engine.md says how one H200 ran it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache as once
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from trivium.engine.cache import LEAST_SHARED, PAGE, Cache, Lease, Row

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import FlexKernelOptions

_QUERIES = 1 << 30  # in a block: all of a context, for they share one list of pages, and one kernel serves any number


class Tables(NamedTuple):
    """What n queries of B contexts see of all P pages, on the cache's device.

    The lists of pages are FlexAttention's: numbers of pages int32 [B, 1, 1, most], of which the first `masked` or `full`,
    int32 [B, 1, 1], count.
    """

    count: torch.Tensor  # int64 [B, P]: how many of a page's tokens count
    start: torch.Tensor  # int64 [B, P]: the position of its first
    at: torch.Tensor  # int64 [B, n]: positions of the queries
    masked: torch.Tensor  # how many pages must be masked
    masked_pages: torch.Tensor
    full: torch.Tensor  # how many pages all queries see as a whole
    full_pages: torch.Tensor


class Speakers:
    """B queries, each with pages of its own."""

    def __init__(self, cache: Cache, rows: Sequence[Row]) -> None:
        self._take(tables(cache, rows, torch.tensor([[sum(row.counts) - 1] for row in rows])))

    @classmethod
    def over(cls, tables: Tables) -> Speakers:
        """Speakers with these tables, which may be changed in place."""
        self = cls.__new__(cls)
        self._take(tables)
        return self

    def _take(self, tables: Tables) -> None:
        self.tables, self._mask = tables, block_mask(tables)

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        """q [B, H, D] -> [B, H, D]."""
        return _attend(q[:, :, None], keys, values, self._mask, scaling)[:, :, 0]


class Readers:
    """B contexts with several new tokens each; `lengths` says how many."""

    def __init__(self, cache: Cache, leases: Sequence[Lease], lengths: Sequence[int]) -> None:
        self._shape = (len(leases), _width(max(lengths)))
        row = torch.arange(len(leases)).repeat_interleave(torch.tensor(lengths))
        place = torch.cat([torch.arange(length) for length in lengths])
        at = torch.full(self._shape, -1)
        at[row, place] = torch.tensor([lease.length - n for lease, n in zip(leases, lengths, strict=True)])[row] + place
        self._row, self._place = row.to(cache.device), place.to(cache.device)
        self._mask = block_mask(tables(cache, leases, at))

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        """q [1, H, n, D], one context after the other, over their pages, where k and v stand already -> [n, H, D]."""
        filled = q.new_zeros(*self._shape, q.shape[1], q.shape[3])
        filled[self._row, self._place] = q[0].transpose(0, 1)
        out = _attend(filled.transpose(1, 2), keys, values, self._mask, scaling)
        return out.transpose(1, 2)[self._row, self._place]


def readers(
    cache: Cache, leases: Sequence[Lease], pasts: Sequence[Any], runs: Sequence[slice]
) -> list[tuple[torch.Tensor, Readers]]:
    """The readers, each with its places of the run. Contexts of about as many new tokens read together."""
    lengths = [run.stop - run.start for run in runs]
    pairs = []
    for width in sorted({_width(length) for length in lengths}):
        rows = [row for row, length in enumerate(lengths) if _width(length) == width]
        at = torch.cat([torch.arange(runs[row].start, runs[row].stop) for row in rows]).to(cache.device)
        pairs.append((at, Readers(cache, [leases[row] for row in rows], [lengths[row] for row in rows])))
    return pairs


def _width(length: int) -> int:
    return 1 << (length - 1).bit_length()


def tables(cache: Cache, leases: Sequence[Lease | Row], at: torch.Tensor) -> Tables:
    """The tables for queries at the positions `at` int64 [B, n] of their contexts. They ascend; -1 behind them sees nothing."""
    sizes = np.array([len(lease.numbers) for lease in leases])
    row = np.repeat(np.arange(len(leases)), sizes)
    number = np.concatenate([lease.numbers for lease in leases])
    count = np.concatenate([lease.counts for lease in leases])
    start = np.cumsum(count) - count
    start -= start[np.cumsum(sizes) - sizes][row]  # in its own context
    full = (count == PAGE) & (start + PAGE - 1 <= at[:, 0].numpy()[row])  # every query sees all of it: nothing to mask
    masked = (count > 0) & ~full
    most = -(-cache.context // LEAST_SHARED) + 1  # pages of a context: of all but the last it has so many tokens at least
    lists = (_page_list(row[pages], number[pages], (len(leases), most)) for pages in (masked, full))
    where = torch.from_numpy(np.stack([row, number, count, start])).to(cache.device)
    spread = [torch.zeros(len(leases), cache.size, dtype=torch.int64, device=cache.device) for _ in range(2)]
    for table, values in zip(spread, where[2:], strict=True):
        table[where[0], where[1]] = values
    return Tables(*spread, at.to(cache.device), *(each.to(cache.device) for each in chain.from_iterable(lists)))


def block_mask(tables: Tables) -> BlockMask:
    """The tables as FlexAttention takes them. It reads them where they stand, each time that it runs."""
    count, start, at, *lists = tables

    def visible(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        page, place = key // PAGE, key % PAGE
        return (place < count[row, page]) & (start[row, page] + place <= at[row, query])

    lengths = (at.shape[1], count.shape[1] * PAGE)
    return BlockMask.from_kv_blocks(
        *lists, BLOCK_SIZE=(_QUERIES, PAGE), mask_mod=visible, seq_lengths=lengths, compute_q_blocks=False
    )


def _page_list(row: np.ndarray, number: np.ndarray, shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A list of pages as FlexAttention takes it, from page numbers and the ascending rows that see them; shape (B, most)."""
    count = np.bincount(row, minlength=shape[0]).astype(np.int32)
    pages = np.zeros(shape, np.int32)
    pages[row, np.arange(len(row)) - (np.cumsum(count) - count)[row]] = number
    return torch.from_numpy(count)[:, None, None], torch.from_numpy(pages)[:, None, None]


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: BlockMask, scaling: float) -> torch.Tensor:
    """q [B, H, n, D] over pages [P, Hkv, PAGE, D], which on a CUDA device lie as [Hkv, P, PAGE, D]: nothing is copied."""
    keys, values = (pages.transpose(0, 1).flatten(1, 2)[None] for pages in (keys, values))
    q = q.clone(memory_format=torch.contiguous_format)  # strides of all sorts would have it compiled anew for each
    return _kernel(q.device.type)(q, keys, values, block_mask=mask, scale=scaling, enable_gqa=True)


@once
def _kernel(device: str) -> Callable[..., Any]:
    """FlexAttention, compiled for a CUDA device.

    torch's other kernel, for few queries, is left out: for the nano model's heads in fp32 torch 2.11 had none. The kernel is
    compiled anew for some numbers (one row, one query, sizes that are by chance the same), more often than the 8 times after
    which torch would give up.
    """
    if device != "cuda":
        return flex_attention
    limit: Any = max(64, torch._dynamo.config.recompile_limit)  # Any, for torch declares it as the literal 8
    torch._dynamo.config.recompile_limit = limit
    options: FlexKernelOptions = {"FORCE_USE_FLEX_ATTENTION": True}
    return partial(torch.compile(flex_attention, dynamic=True), kernel_options=options)
