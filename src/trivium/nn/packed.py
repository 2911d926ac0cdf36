"""The learner's forward pass: many rows in one run of tokens, without padding, and with a common beginning only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 128
"""Queries of one product. A block reads the keys up to its own end, so little is computed that the mask throws away."""

MEMORY = 1 << 24
"""How many probabilities of one layer forward keeps for backward. Of longer rows backward computes them again."""

Slices = list[tuple[int, int]]
"""Places in a run, as (start, stop) from left to right."""


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens [start, stop) of a run. `context` is all that the last of them sees, itself included."""

    start: int
    stop: int
    context: Slices


class Packed:
    """A view of rows laid end to end in a run [1, N]. A token sees itself and what stands left of it in its own row.

    Row i may share its first `shared[i]` tokens with row i - 1. They stand in the run once, where they first came.

    rows       a b c d   a b e   f g
    lengths    4         3       2
    shared     0         2       0
    tokens     a b c d       e   f g        N = 7
    positions  0 1 2 3       2   0 1
    """

    def __init__(self, lengths: Sequence[int], shared: Sequence[int] | None = None) -> None:
        self.lengths = [int(length) for length in lengths]
        self.shared = [0] * len(self.lengths) if shared is None else [int(number) for number in shared]
        self._paths = _paths(self.lengths, self.shared)

    @property
    def positions(self) -> Tensor:
        """int64 [N]: where each token of the run stands in its row."""
        spans = zip(self.shared, self.lengths, strict=True)
        return torch.cat([torch.arange(start, stop) for start, stop in spans])

    def places(self, row: int) -> Tensor:
        """int64 [length]: where each token of a row stands in the run."""
        return torch.cat([torch.arange(start, stop) for start, stop in self._paths[row]])

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        """Causal attention within each row: q [1, H, N, D], k and v [1, Hkv, N, D] -> [1, N, H, D].

        No [N x N] mask exists, and nothing can leak. On a CPU products run in float32 at least, because its bfloat16
        backward is slower (measured).
        """
        if q.device.type == "cuda" and not any(self.shared):
            return self._fused(q, k, v, scaling)
        dtype = v.dtype  # autocast leaves rotated queries and keys in float32
        if dtype in (torch.bfloat16, torch.float16):
            q, k, v = q.float(), k.float(), v.float()
        with torch.autocast(q.device.type, enabled=False):
            if not any(self.shared):
                return self._fused(q, k, v, scaling).to(dtype)
            return _Attention.apply(q[0], k[0], v[0], scaling, self._blocks)[None].to(dtype)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        """One of torch's fused causal products for each row. It is as fast as the blocks below, and faster for long rows."""
        pieces = zip(*(x.split(self.lengths, dim=2) for x in (q, k, v)), strict=True)
        grouped = q.shape[1] != k.shape[1]
        out = [
            scaled_dot_product_attention(*piece, is_causal=True, scale=scaling, enable_gqa=grouped).transpose(1, 2)
            for piece in pieces
        ]
        return torch.cat(out, dim=1)

    @property
    def _blocks(self) -> list[Block]:
        """The run in blocks, from left to right."""
        blocks = []
        for path, length, shared in zip(self._paths, self.lengths, self.shared, strict=True):
            stop = path[-1][1]
            for start in range(stop - (length - shared), stop, BLOCK):
                end = min(start + BLOCK, stop)
                blocks.append(Block(start, end, _first(path, length - (stop - end))))
        return blocks


def _paths(lengths: Sequence[int], shared: Sequence[int]) -> list[Slices]:
    """Where the tokens of each row stand in the run."""
    paths: list[Slices] = []
    end = 0
    for length, common in zip(lengths, shared, strict=True):
        path = _first(paths[-1], common) if common else []
        new = (end, end + length - common)
        if path and path[-1][1] == new[0]:
            path[-1] = (path[-1][0], new[1])
        elif new[0] < new[1]:
            path.append(new)
        paths.append(path)
        end = new[1]
    return paths


def _first(path: Slices, count: int) -> Slices:
    """The first `count` tokens of a path."""
    slices = []
    for start, stop in path:
        if count <= 0:
            break
        slices.append((start, min(stop, start + count)))
        count -= stop - start
    return slices


class _Attention(torch.autograd.Function):
    """softmax(q k' * scaling) v by blocks: q [H, N, D], k, v [Hkv, N, D] -> [N, H, D].

    The heads that share keys are queries of one product. It serves runs with shared tokens, which torch's fused product
    cannot express.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scaling: float, blocks: list[Block]) -> Tensor:
        heads, tokens, size = q.shape
        q = (q * scaling).view(k.shape[0], -1, tokens, size)
        k, v = k.contiguous(), v.contiguous()
        out = q.new_empty(tokens, heads, size)
        by_group = _grouped(out, k.shape[0])
        keep = sum(heads * (b.stop - b.start) * _count(b.context) for b in blocks) <= MEMORY
        probabilities = []
        for block in blocks:
            probs = _probabilities(_queries(q, block), _gather(k, block.context), block)
            by_group[:, :, block.start : block.stop] = _by_head(probs @ _gather(v, block.context), block)
            probabilities += [probs] if keep else []
        ctx.save_for_backward(q, k, v, *probabilities)  # autograd then frees them, and where it recomputes keeps none
        ctx.blocks, ctx.scaling = blocks, scaling
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, *probabilities = ctx.saved_tensors
        grad = _grouped(grads[0], k.shape[0])
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for number, block in enumerate(ctx.blocks):
            queries, keys, upstream = _queries(q, block), _gather(k, block.context), _queries(grad, block)
            probs = probabilities[number] if probabilities else _probabilities(queries, keys, block)
            scores = upstream @ _gather(v, block.context).mT
            scores = torch._softmax_backward_data(scores, probs, -1, scores.dtype)
            dq[:, :, block.start : block.stop] = _by_head(scores @ keys, block)
            _add(dk, scores, queries, block.context)
            _add(dv, probs, upstream, block.context)
        return dq.mul_(ctx.scaling).view(-1, *dq.shape[2:]), dk, dv, None, None


def _grouped(x: Tensor, groups: int) -> Tensor:
    """View [N, H, D] as [Hkv, H / Hkv, N, D]."""
    return x.unflatten(1, (groups, -1)).permute(1, 2, 0, 3)


def _queries(q: Tensor, block: Block) -> Tensor:
    """The n tokens of a block, of [Hkv, G, N, D], as [Hkv, G * n, D]."""
    return q[:, :, block.start : block.stop].flatten(1, 2)


def _by_head(x: Tensor, block: Block) -> Tensor:
    """View [Hkv, G * n, D] as [Hkv, G, n, D]."""
    return x.unflatten(1, (-1, block.stop - block.start))


def _gather(x: Tensor, context: Slices) -> Tensor:
    """The keys or values, of [Hkv, N, D], in a context: [Hkv, P, D]. Where that is one slice nothing is copied."""
    parts = [x[:, start:stop] for start, stop in context]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _probabilities(queries: Tensor, keys: Tensor, block: Block) -> Tensor:
    """[Hkv, G * n, P]. The last n keys are the block's own, of which a query sees those up to itself."""
    scores = queries @ keys.mT
    length = block.stop - block.start
    future = torch.ones(length, length, dtype=torch.bool, device=keys.device).triu_(1)
    _by_head(scores, block)[..., keys.shape[1] - length :].masked_fill_(future, float("-inf"))
    return torch.softmax(scores, -1)


def _add(total: Tensor, left: Tensor, right: Tensor, context: Slices) -> None:
    """Add left' right to total [Hkv, N, D] at the places of `context`: left [Hkv, Q, P], right [Hkv, Q, D]."""
    column = 0
    for start, stop in context:
        part = left[:, :, column : column + stop - start]
        total[:, start:stop].baddbmm_(part.mT, right)
        column += stop - start


def _count(context: Slices) -> int:
    return sum(stop - start for start, stop in context)
