"""Products of rows and weights, in float32 on a CPU by oneDNN.

torch uses MKL for them. On the AMD processor that we measured, MKL stays at AVX2's rate: 105 to 112 GFLOP/s a thread of an
EPYC of family 26. oneDNN, which comes with torch and serves its bfloat16, reaches 220 to 250 with AVX-512 (docs/engine.md).
torch has no switch for it. The operator is the one that torch's compiler uses, and it is not public. Without it, or without
AVX-512, torch's own products are used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional, parameter

_SMALLEST = 2**24
"""The fewest multiplications of a product that repay the kernel (about 1 ms) that oneDNN makes for each new number of rows."""

_ONEDNN = (
    hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
)
"""Whether oneDNN's products can be used here, and are the faster ones."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [..., k] @ weight [n, k].T + bias [n], shape [..., n]: `torch.nn.functional.linear` up to rounding."""
    if not _uses_onednn(x, weight):
        return functional.linear(x, weight, bias)
    return (_Product.apply if torch.is_grad_enabled() else _product)(x, weight, bias)


def add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a [m, k] @ b [k, n] to `into` [m, n], in place and without gradient."""
    if _uses_onednn(a, b.t()):
        into += _product(a, b.t())
    else:
        into.addmm_(a, b)


class Linear(torch.nn.Linear):
    """torch's layer, computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def _uses_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        _ONEDNN
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and type(weight) in (Tensor, parameter.Parameter)  # no shard of one
        and not torch.is_autocast_enabled("cpu")
        and x.numel() * len(weight) >= _SMALLEST
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """y = x W^T + b, so dx = dy W, dW = dy^T x and db = the sum of dy's rows: products of the same kind."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        rows, upstream = x.flatten(0, -2), grad.flatten(0, -2)
        x_learns, weight_learns, bias_learns = ctx.needs_input_grad
        return (
            _product(grad, weight.t()) if x_learns else None,
            _product(upstream.t(), rows.t()) if weight_learns else None,
            upstream.sum(0) if bias_learns else None,
        )
