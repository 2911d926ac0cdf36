"""A prefix tree of pages: keys and values of token runs, computed once for all whose context begins with them.

A page holds up to PAGE tokens of one context. Its children continue it, each from some position inside it. So a context
is a path of (page, how many of its tokens count). Contexts meet in the pages of what they share: the rollouts of a group
in their prompt, a turn in the turns before it, a pruned context in what stands before its first cut. Pages are numbered,
and the lowest free number is taken first. Only the order of requests decides which request gets which page (law 11).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from transformers import PretrainedConfig

PAGE = 128
"""Tokens of a page. Attention of speakers takes less time with 128 than with 64, 256 or 512 (docs/engine.md)."""
LEAST_SHARED = 32
"""A page is shared from this many common tokens on. Fewer tokens are copied into a page of the context's own."""


@dataclass(slots=True, eq=False)
class Page:
    """`tokens` stand at positions `start`, `start + 1`, ...; `users` counts the running contexts that read the page; `open`
    says that one of them writes on in it; `used` is the time of its last release."""

    number: int
    start: int
    parent: Page | None
    tokens: list[int] = field(default_factory=list)
    children: list[Page] = field(default_factory=list)
    users: int = 0
    open: bool = False
    used: int = 0

    def reach(self, tokens: list[int]) -> int:
        """The position up to which this page agrees with `tokens`."""
        section = tokens[self.start : self.start + len(self.tokens)]
        if section == self.tokens:
            return self.start + len(section)
        pairs = enumerate(zip(section, self.tokens, strict=False))
        return self.start + next((n for n, (a, b) in pairs if a != b), len(section))


@dataclass(slots=True, eq=False)
class Lease:
    """What a running request holds. Its path is `pages`, with their `numbers` and the `counts` of their tokens that count;
    `length` is the sum of these. It writes into the page `writes`, and may still take `promised` pages."""

    slot: int
    promised: int
    writes: Page | None = None
    pages: list[Page] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    length: int = 0

    def add(self, page: Page, count: int) -> None:
        self.pages.append(page)
        self.numbers.append(page.number)
        self.counts.append(count)
        self.length += count
        page.users += 1

    @property
    def room(self) -> int:
        """How many tokens the page that it writes can take before it is full. Only those may be retracted."""
        return PAGE - 1 - len(self.writes.tokens) if self.writes else 0

    def drop(self) -> Page:
        """Take the last page off the path."""
        page = self.pages.pop()
        self.numbers.pop()
        self.length -= self.counts.pop()
        return page


class Row(NamedTuple):
    """What one query sees: pages by their numbers, and how many tokens of each count."""

    numbers: list[int]
    counts: list[int]


class Cache:
    """Room for `tokens` tokens of any contexts, at most `slots` of them running at once, each of at most `context`.

    `keys[layer]`, `values[layer]`: [pages, Hkv, PAGE, D] of `dtype` on `device`. All was computed under the engine's present
    weights: a new version clears it, so that every prefix is of one version and law 4 holds for every token. A CPU's memory
    is taken from the system when it is first written, and never more than these pages. A request that does not fit waits, and
    the page that nobody has used for longest is given up first.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        slots: int,
        context: int,
        dtype: torch.dtype,
        tokens: int | None = None,
        device: torch.device = torch.device("cpu"),
    ) -> None:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.context, self.dtype, self.device = context, dtype, device
        self.size = -(-(tokens or slots * context) // PAGE) + 2 * slots  # each context leaves two pages half full
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.group = config.num_attention_heads // heads  # query heads that share keys
        shape = (self.size, heads, PAGE, head)
        self.keys = [_zeros(shape, dtype, device, turned=True) for _ in range(config.num_hidden_layers)]
        self.values = [_zeros(shape, dtype, device) for _ in range(config.num_hidden_layers)]
        self.leased = np.zeros(slots, bool)
        self.reused = 0
        self.computed = 0
        self.evicted = 0
        self.clear()

    def clear(self) -> None:
        """Make the cache as new. What pages hold is not true under new weights, and whom they served may not decide which
        request gets which page: pages order a batch's sums, and so their last bits, and a resumed run, whose engine has no
        past, must agree with them."""
        self.leased[:] = False
        self._root = Page(-1, 0, None)
        self._free = list(range(self.size))
        self._idle: list[tuple[int, int, Page]] = []
        self._resting = 0  # pages that nobody uses
        self._promised = 0
        self._clock = 0

    def prefix(self, tokens: list[int]) -> int:
        """How many of the first tokens are here already."""
        return sum(count for _, count in self._find(tokens))

    def lease(self, tokens: list[int], grow: int) -> Lease | None:
        """A lease for `tokens` and `grow` more, with what is here of them; None when slots or pages do not suffice.

        The lease never has the last token: its logits must be computed.
        """
        free = np.flatnonzero(~self.leased)
        path = self._find(tokens[:-1])
        if not self._fits(path, need := self._need(path, len(tokens) + grow)):
            if self.leased.any():
                return None
            path, need = [], -(-(len(tokens) + grow) // PAGE)  # alone, and still too much: what is here makes room
        if not len(free):
            return None
        lease = Lease(int(free[0]), need)
        self.leased[lease.slot] = True
        self._promised += need
        self._resting -= sum(not page.users for page, _ in path)
        for page, count in path:
            lease.add(page, count)
        self.reused += lease.length
        if path:
            self._settle(lease)
        return lease

    def extend(self, lease: Lease, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """Where the keys and values of the next tokens go: page numbers and places inside them, one per token."""
        numbers, places, count = [], [], 0
        while count < len(tokens):
            page = lease.writes or self._page(lease, lease.length)
            here = len(page.tokens)
            take = min(PAGE - here, len(tokens) - count)
            page.tokens.extend(tokens[count : count + take])
            if here + take == PAGE:
                page.open, lease.writes = False, None
            numbers += [page.number] * take
            places += range(here, here + take)
            lease.counts[-1] += take
            lease.length += take
            count += take
        self.computed += len(tokens)
        return numbers, places

    def retract(self, lease: Lease, count: int) -> None:
        """Take back the last tokens, whose guess was wrong. They stand in the page that the lease writes (`Lease.room`)."""
        if count:
            assert lease.writes is not None
            del lease.writes.tokens[-count:]
            lease.counts[-1] -= count
            lease.length -= count

    def release(self, lease: Lease) -> None:
        """End a lease, whose request is answered. Its pages stay until another request needs the room."""
        self.leased[lease.slot] = False
        self._promised -= lease.promised
        self._clock += 1
        if lease.writes:
            lease.writes.open = False
        for page in reversed(lease.pages):
            self._leave(page)

    def _find(self, tokens: list[int]) -> list[tuple[Page, int]]:
        """The path of pages that agrees with `tokens` furthest."""
        path: list[tuple[Page, int]] = []
        page, position = self._root, 0
        while True:
            best, reach = None, position
            for child in page.children:
                if child.start <= position < len(tokens) and child.tokens[0] == tokens[child.start]:
                    if (far := child.reach(tokens)) > reach:
                        best, reach = child, far
            if best is None:
                return path
            if path:
                path[-1] = (page, best.start - page.start)
            path.append((best, reach - best.start))
            page, position = best, reach

    def _need(self, path: list[tuple[Page, int]], end: int) -> int:
        """Pages that a context of `end` tokens takes beyond its path."""
        page, count = path[-1] if path else (self._root, 0)
        writes = _writable(page, count) or count < LEAST_SHARED
        start = page.start if writes else page.start + count
        return max(0, -(-(end - start) // PAGE) - _writable(page, count))

    def _fits(self, path: list[tuple[Page, int]], need: int) -> bool:
        waking = sum(not page.users for page, _ in path)
        return len(self._free) + self._resting - waking - self._promised >= need

    def _settle(self, lease: Lease) -> None:
        """Decide about the last page of a path: the lease writes on in it, shares it, or copies its few tokens."""
        page, count = lease.pages[-1], lease.counts[-1]
        if _writable(page, count):
            page.open, lease.writes = True, page
        elif count < LEAST_SHARED:
            lease.drop()
            copy = self._page(lease, page.start)
            for layer in (*self.keys, *self.values):
                layer[copy.number, :, :count] = layer[page.number, :, :count]
            copy.tokens = page.tokens[:count]
            lease.counts[-1] = count
            lease.length += count
            self._leave(page)

    def _page(self, lease: Lease, start: int) -> Page:
        """A new page of this lease, open to be written."""
        if not self._free:
            self._evict()
        parent = lease.pages[-1] if lease.pages else self._root
        page = Page(heapq.heappop(self._free), start, parent, open=True)
        for layer in (*self.keys, *self.values):
            layer[page.number] = 0  # NaN, left by weights that gave some, is hidden by no mask
        parent.children.append(page)
        lease.add(page, 0)
        lease.writes = page
        lease.promised -= 1
        self._promised -= 1
        return page

    def _leave(self, page: Page) -> None:
        page.users -= 1
        page.used = self._clock
        if not page.users:
            self._resting += 1
            self._rest(page)

    def _rest(self, page: Page) -> None:
        """Let a page be evicted, if no request uses it and no other page continues it."""
        if not page.users and not page.children and page.parent:
            heapq.heappush(self._idle, (page.used, page.number, page))

    def _evict(self) -> None:
        """Give up the page that nobody has used for longest. There is one, for a lease's promised pages are reserved."""
        while True:
            used, _, page = heapq.heappop(self._idle)
            if not page.users and not page.children and page.used == used and page.parent:
                break
        parent, page.parent = page.parent, None
        parent.children.remove(page)
        heapq.heappush(self._free, page.number)
        self._resting -= 1
        self.evicted += 1
        if parent is not self._root:
            self._rest(parent)


def _writable(page: Page, count: int) -> bool:
    """Whether a context with `count` of the page's tokens may go on in it."""
    return count == len(page.tokens) < PAGE and not page.open and page.parent is not None


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, turned: bool = False) -> torch.Tensor:
    """Zeros of shape [pages, heads, PAGE, D].

    On a CPU the system gives their memory when it is first written, where torch.zeros would write all of it at once; with
    `turned` a page lies as [D, PAGE]. Elsewhere they lie as [heads, pages, PAGE, D], as FlexAttention reads them.
    """
    pages, heads, page, head = shape
    if device.type != "cpu":
        return torch.zeros((heads, pages, page, head), dtype=dtype, device=device).transpose(0, 1)
    size = int(np.prod(shape)) * dtype.itemsize
    flat = torch.from_numpy(np.zeros(size, np.uint8)).view(dtype)
    return flat.view(pages, heads, head, page).transpose(2, 3) if turned else flat.view(shape)
