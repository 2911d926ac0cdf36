"""What the ranks of a data-parallel learner agree on. Alone, every function gives back what it got."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def number() -> int:
    """Our number."""
    return dist.get_rank() if distributed() else 0


def total(tensor: Tensor) -> Tensor:
    """Sum over ranks."""
    return _reduced(tensor, dist.ReduceOp.SUM) if distributed() else tensor


def largest(tensor: Tensor) -> Tensor:
    """Maximum over ranks, element by element."""
    return _reduced(tensor, dist.ReduceOp.MAX) if distributed() else tensor


def gather(value: Any) -> tuple[list[Any], int]:
    """Every rank's `value` (small, picklable) in the order of ranks, and which of them is ours."""
    if not distributed():
        return [value], 0
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values, dist.get_rank()


def sum_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Add up gradients over ranks, in one run; a parameter that this rank never touched counts as zero."""
    if not distributed():
        return
    gradients = [_gradient(parameter) for parameter in parameters]
    summed = total(torch.cat([gradient.flatten() for gradient in gradients]))
    for gradient, part in zip(gradients, summed.split([each.numel() for each in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def _gradient(parameter: torch.nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _reduced(tensor: Tensor, operation: Any) -> Tensor:
    tensor = tensor.clone()
    dist.all_reduce(tensor, operation)
    return tensor
