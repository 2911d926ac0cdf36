"""What a vLLM worker needs to take trivium's weights: give vLLM `--worker-extension-cls trivium_vllm.Worker` and this
folder in PYTHONPATH. It stands alone: the server's environment has vLLM, what vLLM needs, and blake3, and no trivium.

On a CPU, vLLM packs the weights of its linear layers for oneDNN (or another kernel) and computes with the packed ones.
A reload writes into tensors that nobody reads any more, reports success, and the server goes on with a mixture of old
and new weights. So packing is turned off before the model is built, and `trivium_serves` tests
that every layer computes with the tensor that it holds, whatever kernel is chosen.
"""

from __future__ import annotations

import sys
from typing import Any

import blake3
import torch


def digest(state: dict[str, torch.Tensor]) -> str:
    """blake3 (hex) of names, dtypes, shapes and bytes, as `nn.network.digest` has it."""
    hasher = blake3.blake3()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        hasher.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        hasher.update(memoryview(tensor.flatten().view(torch.uint8).numpy()))
    return hasher.hexdigest()


def widened(state: dict[str, torch.Tensor], dtype: str) -> dict[str, torch.Tensor]:
    """`state` as a server of `dtype` holds it. Widening 16 bits to float32 changes no value; ValueError for any other cast."""
    tensors = {}
    for name, tensor in state.items():
        held = str(tensor.dtype).removeprefix("torch.")
        if held != dtype and (dtype, held) not in (("float32", "bfloat16"), ("float32", "float16")):
            raise ValueError(
                f"{name} is {held} and the server's weights are {dtype}: publish {dtype}, or serve with --dtype {held}"
            )
        tensors[name] = tensor.to(getattr(torch, dtype))
    return tensors


class Worker:
    """Mixed into vLLM's own worker, which has these three. Every method answers with a dict; "error" in it says what went
    wrong."""

    vllm_config: Any
    model_runner: Any
    device: torch.device

    def trivium_serves(self) -> dict:
        """What this worker is, and which of its layers do not compute with the weights that they hold."""
        try:
            return self._serves()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _serves(self) -> dict:
        config = self.vllm_config.model_config
        splits = self.vllm_config.scheduler_config.enable_chunked_prefill
        return {
            "folder": str(config.model),
            "logprobs": str(config.logprobs_mode),
            "dtype": str(config.dtype).removeprefix("torch."),
            "context": int(config.max_model_len),
            "workers": int(self.vllm_config.parallel_config.world_size_across_dp),
            "dies": bool(splits and self.device.type == "cpu"),  # of a seed, where a prompt is split: torch cannot rewind it
            "stale": _stale(self.model_runner.model),
        }

    def trivium_load(self, path: str) -> dict:
        """Take over the safetensors file at `path`; the digest of what is then held."""
        from safetensors.torch import load_file

        try:
            dtype = str(self.vllm_config.model_config.dtype).removeprefix("torch.")
            state = widened(load_file(path), dtype)
            with torch.inference_mode():
                self.model_runner.model.load_weights(iter(state.items()))
            self.trivium_shapes = {name: list(tensor.shape) for name, tensor in state.items()}
        except Exception as error:  # an exception in a worker may end the server: told by the client instead
            return {"error": f"{type(error).__name__}: {error}"}
        return self.trivium_digest()

    def trivium_digest(self) -> dict:
        """Of the tensors that are held, under the names and shapes of the file that was loaded last."""
        try:
            shapes = getattr(self, "trivium_shapes", None) or _shapes(self.vllm_config)
            return {"digest": digest(_held(self.model_runner.model, shapes))}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


@torch.inference_mode()
def _stale(model: torch.nn.Module) -> list[str]:
    """Layers whose product does not double when their weight does. Doubling is exact, and so is halving afterwards."""
    layers = []
    for name, layer in model.named_modules():
        method, weight = getattr(layer, "quant_method", None), getattr(layer, "weight", None)
        if method is None or not isinstance(weight, torch.Tensor):
            continue
        if weight.dim() != 2 or not weight.is_floating_point() or weight.dtype.itemsize < 2:  # float8 cannot be doubled
            layers.append(name)
            continue
        x = torch.linspace(-1, 1, 4 * weight.shape[1], device=weight.device, dtype=weight.dtype).view(4, -1)
        once = method.apply(layer, x, None).clone()
        weight.mul_(2)
        twice = method.apply(layer, x, None).clone()
        weight.mul_(0.5)
        if not torch.equal(twice, 2 * once) or not once.any():
            layers.append(name)
    return layers


def _shapes(config) -> dict[str, list[int]]:
    """Of the weights that vLLM was started with: a folder's, or those of a name, which it has fetched by then."""
    from pathlib import Path

    from huggingface_hub import snapshot_download
    from safetensors import safe_open

    model, fetched = config.model_config, config.load_config.download_dir
    folder = Path(model.model)
    if not folder.is_dir():
        folder = Path(snapshot_download(model.model, revision=model.revision, cache_dir=fetched, local_files_only=True))
    shapes = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            shapes |= {name: list(opened.get_slice(name).get_shape()) for name in opened.keys()}
    if not shapes:
        raise ValueError(f"{model.model} holds no safetensors, and nothing was loaded yet")
    return shapes


def _held(model: Any, shapes: dict[str, list[int]]) -> dict[str, torch.Tensor]:
    """The model's tensors under a checkpoint's names: vLLM stacks q, k and v, gate and up, and pads the vocabulary."""
    mine = dict(model.named_parameters(remove_duplicate=False))
    stacked = {part: (whole, parts) for whole, parts in model.packed_modules_mapping.items() for part in parts}
    tensors = {}
    for name, shape in shapes.items():
        start, source = 0, name
        part = next((word for word in name.split(".") if word in stacked), None)
        if name not in mine and part:
            whole, parts = stacked[part]
            source = name.replace(f".{part}.", f".{whole}.")
            start = sum(shapes[name.replace(f".{part}.", f".{p}.")][0] for p in parts[: parts.index(part)])
        tensor = mine[source][start : start + shape[0]]
        if list(tensor.shape) != list(shape):
            raise ValueError(f"{source} has shape {list(mine[source].shape)}, where {name} of {list(shape)} is expected")
        tensors[name] = tensor
    return tensors


if "vllm" in sys.modules:  # in a worker, before it builds its model
    from vllm import _custom_ops  # ty: ignore[import-not-found] only the server's environment has it
    from vllm.model_executor.layers import utils  # ty: ignore[import-not-found]

    _custom_ops._supports_onednn = False
    utils.check_cpu_sgl_kernel = lambda *_: False
