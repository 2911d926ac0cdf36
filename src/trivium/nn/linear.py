"""Products of rows and weights, in float32 on a CPU by oneDNN.

torch asks MKL for them, which on the AMD processor measured stays at AVX2's rate, half of what AVX-512 can do: 105 to 112
GFLOP/s a thread of an EPYC of family 26, where oneDNN, which comes with torch and serves its bfloat16, has 220 to 250
(docs/engine.md). torch has no switch for it. The operator is the one that its compiler uses, and not public: without it,
or without AVX-512, torch's own products serve.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional, parameter

_WORTH = 2**24
"""Multiplications of a product that repay the kernel (about 1 ms) that oneDNN makes for every new number of rows."""

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
if not torch.backends.mkldnn.is_available() or not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
    _onednn = None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., k] @ weight [n, k].T + bias [n] -> [..., n], as `torch.nn.functional.linear` up to rounding."""
    if not _chosen(x, weight):
        return functional.linear(x, weight, bias)
    return (_Product.apply if torch.is_grad_enabled() else _product)(x, weight, bias)


def add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """into [m, n] += a [m, k] @ b [k, n], in place and without gradient."""
    if _chosen(a, b.t()):
        into += _product(a, b.t())
    else:
        into.addmm_(a, b)


class Linear(torch.nn.Linear):
    """torch's layer, by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def _chosen(x: Tensor, weight: Tensor) -> bool:
    return (
        _onednn is not None
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and type(weight) in (Tensor, parameter.Parameter)  # no shard of one
        and not torch.is_autocast_enabled("cpu")
        and x.numel() * len(weight) >= _WORTH
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _onednn(x, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """y = x W^T + b, so dx = dy W, dW = dy^T x and db = the sum of dy's rows: products of the same kind."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows, upstream = x.flatten(0, -2), grad.flatten(0, -2)
        wanted_x, wanted_weight, wanted_bias = ctx.needs_input_grad
        return (
            _product(grad, weight.t()) if wanted_x else None,
            _product(upstream.t(), rows.t()) if wanted_weight else None,
            upstream.sum(0) if wanted_bias else None,
        )
