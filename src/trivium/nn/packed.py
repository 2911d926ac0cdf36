"""Several sequences in one run of tokens, without padding: what the learner's forward pass sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention


class Packed:
    """A view of sequences laid end to end in a run [1, N]: a token sees itself and what is left of it in its own.

    lengths    3       2     4
    tokens     a a a | b b | c c c c
    positions  0 1 2 | 0 1 | 0 1 2 3
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = [int(length) for length in lengths]

    @property
    def positions(self) -> torch.Tensor:
        """int64 [N]: where each token stands in its own sequence."""
        return torch.cat([torch.arange(length) for length in self.lengths])

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
        """Causal attention within each sequence: q [1, H, N, D], k and v [1, Hkv, N, D] -> [1, N, H, D].

        One fused causal product for each sequence, so no [N x N] mask exists and nothing can leak.
        """
        own = q.dtype
        if (
            q.device.type == "cpu" and own == torch.bfloat16
        ):  # torch's bfloat16 backward is the slower one there (measured)
            q, k, v = q.float(), k.float(), v.float()
        pieces = zip(*(x.split(self.lengths, dim=2) for x in (q, k, v)), strict=True)
        grouped = q.shape[1] != k.shape[1]
        out = [
            scaled_dot_product_attention(*piece, is_causal=True, scale=scaling, enable_gqa=grouped).transpose(1, 2)
            for piece in pieces
        ]
        return torch.cat(out, dim=1).to(own)
