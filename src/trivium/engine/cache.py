"""Keys and values of many contexts: one slot each, found again by longest common prefix, copied where a prefix is shared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

MARGIN = 256
"""Room behind each slot's last position, for the padding that a batch of unequal rows writes there."""


class Cache:
    """`slots` contexts of up to `context` tokens. A slot outlives its request, so that the next turn finds its past here.

    `keys[layer]`, `values[layer]`: float [slots, Hkv, context + MARGIN, D]. `tokens` int32 [slots, context] and `lengths`
    int64 [slots] say what each slot holds; everything was computed under the engine's present weights (a new version
    clears it, so that every prefix is of one version and law 4 holds for every token).
    """

    def __init__(self, config, slots: int, context: int, dtype: torch.dtype) -> None:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (slots, config.num_key_value_heads, context + MARGIN, head)
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(config.num_hidden_layers)]
        self.tokens = np.zeros((slots, context), np.int32)
        self.lengths = np.zeros(slots, np.int64)
        self.leased = np.zeros(slots, bool)
        self._used = np.zeros(slots, np.int64)
        self._clock = 0
        self.reused = 0
        self.computed = 0

    @property
    def context(self) -> int:
        return self.tokens.shape[1]

    def shared(self, tokens: Sequence[int]) -> np.ndarray:
        """int64 [slots]: how long a prefix of `tokens` each slot holds."""
        wanted = np.asarray(tokens, np.int32)
        differs = self.tokens[:, : len(wanted)] != wanted
        first = np.where(differs.any(1), differs.argmax(1), len(wanted))
        return np.minimum(first, self.lengths)

    def lease(self, tokens: Sequence[int]) -> int | None:
        """A slot for `tokens`, holding already the longest prefix that any slot has; None when all are taken.

        The slot that has it is taken over when it is free and little else would be lost; otherwise its prefix is copied
        into the slot that was used longest ago (a copy costs next to nothing: prototype.md A4).
        """
        free = np.flatnonzero(~self.leased)
        if not len(free):
            return None
        # the last token's logits are always computed, so that a request never finds its whole prompt here
        shared = np.minimum(self.shared(tokens), len(tokens) - 1)
        donor = int(np.lexsort((self.leased, -shared))[0])
        length = int(shared[donor])
        slot = donor if not self.leased[donor] and 2 * length >= self.lengths[donor] else int(free[self._used[free].argmin()])
        if slot != donor and length:
            for layer in (*self.keys, *self.values):
                layer[slot, :, :length] = layer[donor, :, :length]
            self.tokens[slot, :length] = self.tokens[donor, :length]
        self.lengths[slot] = length
        self.leased[slot] = True
        self.reused += length
        return slot

    def wrote(self, slot: int, tokens: Sequence[int]) -> None:
        """The keys and values of `tokens` now follow what the slot held."""
        start = int(self.lengths[slot])
        self.tokens[slot, start : start + len(tokens)] = tokens
        self.lengths[slot] = start + len(tokens)
        self.computed += len(tokens)

    def release(self, slot: int) -> None:
        """Its request is done; what it holds stays until somebody needs the room."""
        self.leased[slot] = False
        self._clock += 1
        self._used[slot] = self._clock

    def clear(self) -> None:
        """As new: what slots held is not true under new weights, and whom they served may not decide who gets which. Slots
        order a batch, and a batch's order its last bits: a resumed run, whose engine has no past, must agree with them."""
        self.lengths[:] = 0
        self._used[:] = 0
        self._clock = 0
