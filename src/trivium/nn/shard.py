"""A network spread over the ranks (FSDP2): each keeps its part of every weight and gathers a layer while it runs.

A weight is then a DTensor, cut along its first dimension. `whole` and `part` go between that and an ordinary tensor.
Both leave ordinary weights as they are, so that Network and Learner read the same with and without ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import torch.distributed as dist
from torch import Tensor

from trivium.errors import InputError

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    from trivium.nn.network import Network


def shard(network: Network) -> Network:
    """Spread `network` over all ranks, in place. Call it on each, with equal weights, before a Learner takes the network.

    From then on every rank must take part in what reads or runs the network (`hidden`, `state`, `digest`, `save`, a
    step), in the same order. Gradients are added up over ranks during backward. Raises InputError without a process
    group, and for a network that is spread already or has adapters.
    """
    from torch.distributed.fsdp import fully_shard

    if network.adapted:
        raise InputError("a network with adapters (lora) is not spread over ranks: leave out lora or shard")
    if network.sharded:
        raise InputError("this network is spread over the ranks already")
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError("shard() spreads a network over ranks: call torch.distributed.init_process_group first")
    mesh = dist.init_device_mesh(network.head.weight.device.type, (dist.get_world_size(),))
    for layer in network.model.base_model.get_submodule("layers").children():
        _add_up(fully_shard(layer, mesh=mesh))
    # what is in no layer stays gathered from forward to backward: logprobs() reads the head after forward
    _add_up(fully_shard(network, mesh=mesh, reshard_after_forward=False))
    network.sharded = True
    return network


def _add_up(module: FSDPModule) -> None:
    """Sum gradients, where FSDP2 takes means: weights of episodes are over the totals of all ranks already.

    The sum is forced, because with a factor of one FSDP2 asks for a scaled sum, which gloo does not know (torch 2.13).
    """
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, of which this rank may have a part."""
    return tensor.full_tensor() if _is_part(tensor) else tensor


def part(value: Tensor, like: Tensor) -> Tensor:
    """What this rank keeps of the whole tensor `value`, cut as `like` is and on its device. No rank sends anything."""
    value = value.to(like.device)
    if not _is_part(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def _is_part(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is spread over the ranks, found out without the import of torch's module for such tensors."""
    return hasattr(tensor, "full_tensor")
