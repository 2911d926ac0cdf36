"""Muon: momentum whose update is orthogonalised, for matrices (K. Jordan et al., 2024, kellerjordan.github.io/posts/muon)."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, then five Newton-Schulz steps on all matrices of one shape at once.

    The update of an [out, in] matrix is scaled by max(1, out / in) ** 0.5, so that one learning rate fits all shapes.
    """

    def __init__(self, params, lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    shapes[tuple(p.shape)].append((p, p.grad.lerp(buffer, group["momentum"])))
            for (rows, columns), pairs in shapes.items():
                updates = orthogonalise(torch.stack([u for _, u in pairs]))
                for (p, _), update in zip(pairs, updates, strict=True):
                    p.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonalise(batch: Tensor) -> Tensor:
    """float32 [n, rows, columns] -> the nearest semi-orthogonal matrices, roughly: singular values in about (0.7, 1.2)."""
    tall = batch.shape[1] > batch.shape[2]
    x = batch.transpose(1, 2) if tall else batch
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.transpose(1, 2) if tall else x).float()
