"""The learner's options, in two groups: how gradients move the weights, and how a step is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from trivium.errors import InputError
from trivium.nn import Network


def constant_rate(version: int) -> float:
    """The learning rate, unscheduled."""
    return 1.0


@dataclass(frozen=True, slots=True)
class AdamW:
    """How a batch's gradients move the weights: PyTorch's AdamW, its second beta 0.95.

    substeps        updates a batch: whole episodes are dealt to them in turn
    schedule        version -> factor on the learning rate
    max_grad_norm   gradients are clipped to this norm; math.inf clips nothing
    momentum        the first beta
    weight_decay    of matrices; vectors (norms, biases) do not decay
    """

    substeps: int = 1
    schedule: Callable[[int], float] = constant_rate
    max_grad_norm: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.substeps < 1:
            raise InputError(f"substeps are at least 1, not {self.substeps}")
        if not (self.max_grad_norm > 0 and 0 <= self.momentum < 1 and 0 <= self.weight_decay < math.inf):
            values = f"momentum {self.momentum}, max_grad_norm {self.max_grad_norm}, weight_decay {self.weight_decay}"
            raise InputError(
                f"{values}: momentum is from 0 and below 1, max_grad_norm above 0 (math.inf clips nothing), weight_decay from 0"
            )

    def of(self, network: Network, lr: float) -> torch.optim.AdamW:
        """The optimizer of what `network` learns. Raises InputError for a rate below 0, or endless."""
        if not 0 <= lr < math.inf:
            raise InputError(f"lr {lr}: a learning rate is 0 or more")
        matrices = [p for p in network.parameters() if p.requires_grad and p.dim() >= 2]
        vectors = [p for p in network.parameters() if p.requires_grad and p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(self.momentum, 0.95), fused=True)


@dataclass(frozen=True, slots=True)
class Compute:
    """How a step is computed. None of it changes what is learned, but for rounding.

    micro_tokens   the most tokens of one forward and backward pass
    autocast       the network's products in bfloat16; losses stay float32
    recompute      backward computes layers again, of which forward kept only what enters them (`Network.recompute`)
    share          what rows have in common at their beginning is computed once (a GPU has no fast kernel for it)
    """

    micro_tokens: int = 8192
    autocast: bool = False
    recompute: bool = False
    share: bool = True

    def __post_init__(self) -> None:
        if self.micro_tokens < 1:
            raise InputError(f"micro_tokens are at least 1, not {self.micro_tokens}")
