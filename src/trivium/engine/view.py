"""What a row of the engine's batch sees: its slot's past, and its own new tokens causally."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from trivium.engine.cache import Cache


class Slots:
    """A batch of B rows with n new tokens each; row b continues slot `slots[b]` at position `starts[b]`.

    Rows shorter than n are padded on the right: padding writes behind a slot's end, where the next tokens overwrite it
    before anything may look, and its outputs are dropped.
    """

    def __init__(self, cache: Cache, slots: torch.Tensor, starts: torch.Tensor, new: int) -> None:
        self._cache, self._rows = cache, slots
        self.positions = starts[:, None] + torch.arange(new)
        self._end = int(starts.max()) + new
        visible = torch.arange(self._end) <= self.positions[:, :, None]  # [B, n, L]
        self._mask = torch.zeros(visible.shape, dtype=cache.keys[0].dtype).masked_fill_(~visible, float("-inf"))
        # most rows of the first slots: read them where they are, without a copy
        self._slice = len(slots) == int(slots[-1]) + 1 and bool((slots == torch.arange(len(slots))).all())

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
        """q [B, H, n, D], k and v [B, Hkv, n, D] -> [B, n, H, D]."""
        keys = self._store(self._cache.keys[layer], k)
        values = self._store(self._cache.values[layer], v)
        batch, heads, new, size = q.shape
        if new == 1:  # one query a row: the heads that share keys become queries of one product
            grouped = q.view(batch, k.shape[1], heads // k.shape[1], size)
            out = scaled_dot_product_attention(grouped, keys, values, self._mask[:, None], scale=scaling)
            return out.reshape(batch, 1, heads, size)
        mask = self._mask[:, None]
        out = scaled_dot_product_attention(q, keys, values, mask, scale=scaling, enable_gqa=heads != k.shape[1])
        return out.transpose(1, 2)

    def _store(self, held: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Write the new keys (or values) [B, Hkv, n, D]; return all that the rows may see, [B, Hkv, L, D]."""
        held[self._rows[:, None], :, self.positions] = new.transpose(1, 2)
        if self._slice:
            return held[: len(self._rows), :, : self._end]
        return held[self._rows, :, : self._end]
