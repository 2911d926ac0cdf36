"""LoRA by peft: small adapters beside every linear layer learn, and the weights themselves stay (arXiv:2106.09685).

A layer computes W x + (alpha / rank) B A x. A and B learn, W does not. What leaves the network (`state`, and so
publishing, digests and saved folders) has W + (alpha / rank) B A under W's name, as if there were no adapters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trivium.errors import InputError

if TYPE_CHECKING:
    from trivium.nn.network import Network

ADAPTER = "default"
"""peft's name for the only adapter."""


def lora(network: Network, rank: int = 8, alpha: float | None = None, seed: int = 0) -> Network:
    """Give `network` adapters of `rank`, in place. Call it before a Learner takes the network. `alpha` is 2 * rank by default.

    The same seed gives the same adapters. At first they change nothing (B is 0). Embedding, norms and head stay frozen.
    Raises InputError without peft, for a rank below 1 or an alpha not above 0, and for a network that has
    adapters or is sharded.
    """
    if rank < 1 or network.adapted:
        raise InputError("lora() takes a rank of at least 1 and a network without adapters")
    if alpha is not None and not 0 < alpha < math.inf:
        raise InputError(f"alpha is a number above 0, not {alpha}: adapters without weight learn nothing")
    if network.sharded:
        raise InputError("a network that is spread over ranks takes no adapters: leave out lora or shard")
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise InputError("lora() needs peft: pip install peft") from error
    alpha = 2 * rank if alpha is None else alpha
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear")  # ty: ignore[invalid-argument-type] # peft says int
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, network.model, adapter_name=ADAPTER)
    network.adapted, network.alpha = True, float(alpha)
    return network


@torch.no_grad()
def merged(model: torch.nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors `state` of an adapted model as those of one without adapters, under its names and in its order."""
    tensors = {}
    for name, tensor in state.items():
        path, inner, field = name.rpartition(".base_layer.")
        if inner and field == "weight":
            layer: Any = model.get_submodule(path)  # peft's own, whose base class does not tell of deltas
            tensor = tensor + layer.get_delta_weight(ADAPTER).to(tensor.dtype)
        if ".lora_" not in name:
            tensors[name.replace(".base_layer.", ".")] = tensor
    return tensors
