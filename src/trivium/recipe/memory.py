"""What a worker of a run takes of memory, part by part, before it is begun: how its learner computes within what there is,
and an error where nothing would fit, in place of the kernel's, which ends a process without a word.

Parts and their formulas are of numbers alone (`Size`). What one token leaves for the way back is counted on the network itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from trivium.engine import Engine
from trivium.errors import InputError
from trivium.nn import Network, Packed
from trivium.nn.logprobs import CHUNK
from trivium.nn.packed import MEMORY
from trivium.policy import Renderer

GIB = 2**30
LIBRARIES = 0.75
"""GiB of a worker before it has a network: torch, transformers, a corpus and its embedder (docs/train.md)."""

MICRO = 8192
"""Tokens of a pass where they fit: more of them share a beginning, and a product of more rows gains nothing."""

SLOTS = 64
"""Contexts that an engine speaks for at once where they fit (`Engine`)."""

_SPARE = 0.95
"""The share of what there is that a run may plan with."""

_UNDER_WAY = 8
"""Layers' worth of activations that a pass takes beside those it keeps: the layer it is in, its gradients, and the holes that
malloc leaves between blocks of many sizes (measured on SmolLM2, 2,048 to 8,192 tokens: 6 to 11; docs/train.md)."""

_READ, _DRAWN = 1024, 256
"""Tokens of prompts that an engine's pass reads, and tokens whose logits it has at one time."""


@dataclass(frozen=True, slots=True)
class Size:
    """A network in numbers: parameters in all and those that learn, each of `width` bytes; layers, query heads, keys and values
    of a token in one layer (floats), width of its hidden states, vocabulary; bytes that a token leaves in each layer for the
    way back (but for attention's probabilities)."""

    parameters: int
    learning: int
    layers: int
    heads: int
    cached: int
    hidden: int
    vocabulary: int
    token: int
    width: int = 4

    @classmethod
    def of(cls, network: Network) -> Size:
        config, every = network.config, list(network.parameters())
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        groups = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return cls(
            parameters=sum(p.numel() for p in every),
            learning=sum(p.numel() for p in every if p.requires_grad),
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            cached=2 * groups * head,
            hidden=config.hidden_size,
            vocabulary=config.vocab_size,
            token=left_behind(network) // config.num_hidden_layers,
            width=network.head.weight.element_size(),
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """How a worker computes: tokens of a learner's pass, whether layers are computed again (`train.Compute`), and episodes
    that its engine speaks for at once. It decides the last bits of a run, so a run keeps it."""

    micro_tokens: int = MICRO
    recompute: bool = False
    slots: int = SLOTS


@dataclass(frozen=True, slots=True)
class Load:
    """What a run asks of a worker: `context` tokens of a window, how many processes add up gradients, whether a third network
    is read (a reference)."""

    context: int
    workers: int = 1
    reference: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of a worker at its fullest, by what takes them. A checkpoint is written and read while nothing is learned, so the
    larger of `activations` and `checkpoint` counts."""

    weights: int
    optimizer: int
    activations: int
    checkpoint: int
    cache: int
    speaking: int

    @property
    def total(self) -> float:
        steps = max(self.activations + self.speaking, self.checkpoint)
        return LIBRARIES * GIB + self.weights + self.optimizer + self.cache + steps

    def __str__(self) -> str:
        parts = {
            "libraries": LIBRARIES * GIB, "weights": self.weights, "gradients and AdamW": self.optimizer,
            "activations": self.activations, "keys and values": self.cache, "a checkpoint": self.checkpoint,
        }  # fmt: skip
        return ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items())


def need(size: Size, load: Load, fit: Fit) -> Need:
    """What a worker takes that computes so."""
    weights = (2 + load.reference) * size.parameters * size.width  # the learner's and the engine's
    summed = 2 * (load.workers > 1)  # gradients in one run, and the sum that comes back
    return Need(
        weights=weights,
        optimizer=(3 + summed) * size.learning * size.width,
        activations=activations(size, max(fit.micro_tokens, load.context), load.context, fit.recompute),
        checkpoint=(size.parameters + 2 * size.learning) * size.width,
        cache=cache(size, fit.slots, load.context),
        speaking=speaking(size),
    )


def activations(size: Size, tokens: int, context: int, recompute: bool) -> int:
    """Bytes that a learner's pass over `tokens` has at its fullest: what layers left, what is under way, and logits."""
    layer = tokens * size.token + probabilities(size, tokens, context)
    kept = size.layers * (tokens * size.hidden * size.width if recompute else layer)
    return kept + min(_UNDER_WAY, size.layers) * layer + logits(size)


def probabilities(size: Size, tokens: int, context: int) -> int:
    """Bytes of one layer's attention to half a context, where it keeps them (`nn.packed.MEMORY`)."""
    count = size.heads * tokens * context // 2
    return count * size.width if count <= MEMORY else 0


def logits(size: Size) -> int:
    """Bytes of the logits that `nn.logprobs` has at one time, thrice, and of the head's gradient."""
    return (3 * CHUNK["cpu"] + size.hidden) * size.vocabulary * size.width


def cache(size: Size, slots: int, context: int) -> int:
    """Bytes of an engine's keys and values: two half-full pages of 128 tokens beside each context."""
    return size.layers * size.cached * slots * (context + 256) * size.width


def speaking(size: Size) -> int:
    """Bytes of an engine's pass: a layer of the tokens it reads, and logits with their sums in float64."""
    return 2 * _READ * size.token + 3 * _DRAWN * size.vocabulary * size.width


def fitting(size: Size, load: Load, slots: int, free: float) -> Fit:
    """The first way to compute whose need is within `free` bytes. A pass of MICRO tokens comes first, then half of it; then
    layers are computed again, which costs less time than passes of less than that; then fewer slots. InputError where
    nothing fits."""
    ways = [(MICRO, False), (MICRO // 2, False), (MICRO, True), (MICRO // 2, True), (MICRO // 4, True), (MICRO // 8, True)]
    tried = [Fit(*way, slots) for way in ways]
    while slots > 8:
        slots = max(8, slots // 2)
        tried.append(Fit(*ways[-1], slots))
    for fit in tried:
        if need(size, load, fit).total <= free:
            return fit
    raise refusal(need(size, load, tried[-1]), load, free)


def check(size: Size, load: Load, fit: Fit, free: float) -> None:
    """InputError for a way to compute that does not fit into `free` bytes."""
    if (least := need(size, load, fit)).total > free:
        raise refusal(least, load, free)


def refusal(least: Need, load: Load, free: float) -> InputError:
    """The error that says what is missing, and of which parts the need is made."""
    each = f"each of {load.workers} workers needs" if load.workers > 1 else "it needs"
    return InputError(
        f"this run does not fit into memory: {each} {least.total / GIB:.1f} GiB ({least}) and there are {free / GIB:.1f}: "
        f"end other programs, or take fewer --workers, a smaller --window or model"
    )


def free(workers: int = 1, device: str = "cpu") -> float:
    """Bytes that each of `workers` may plan with."""
    if device == "cuda":
        return _SPARE * torch.cuda.mem_get_info()[0] / workers
    return _SPARE * available() / workers


def available(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> float:
    """Bytes that this process could still take: what the machine has, or less where a control group has a limit (v1 or v2, its
    own or one above it). Files that the system has read count as free."""
    return min([psutil.virtual_memory().available, *map(_room, _groups(root, groups))])


def _groups(root: Path, groups: Path) -> list[Path]:
    """The folders of our control group and of those above it, as they are mounted here (a container sees its own at the
    root)."""
    lines = [line.split(":", 2) for line in groups.read_text().splitlines()] if groups.is_file() else []
    folders = []
    for _, controllers, path in lines:
        top = root / "memory" if "memory" in controllers.split(",") else root
        if controllers and top == root:
            continue  # another controller's
        inside = top / path.strip("/")
        folders += [folder for folder in (inside, *inside.parents) if folder == top or top in folder.parents]
    return folders


def _room(folder: Path) -> float:
    """Bytes below the limit of one control group; infinite without one."""
    for limit, used, files in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, now = (folder / limit).read_text().strip(), int((folder / used).read_text())
            lines = (folder / "memory.stat").read_text().splitlines()
        except OSError:
            continue
        kept = next((int(line.split()[1]) for line in lines if line.split()[0] == files), 0)
        return float("inf") if most == "max" else int(most) - now + kept
    return float("inf")


def left_behind(network: Network) -> int:
    """Bytes that one more token leaves for backward in all layers, counted on passes of 64 and 128 tokens: what autograd saved,
    each storage once, and no weight."""
    few, more = (_saved(network, tokens) for tokens in (64, 128))
    return (more - few) // 64


def _saved(network: Network, tokens: int) -> int:
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}
    saved: dict[int, int] = {}
    alive = []  # a storage that is freed may come back under another's address

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    view, device = Packed([tokens]), network.head.weight.device
    run = torch.arange(tokens, device=device) % network.config.vocab_size
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network.hidden(run, view.positions.to(device), view)
    return sum(saved.values())


def fitting_engine(model: str | Path, renderer: Renderer, context: int, slots: int = SLOTS, version: int = 0) -> Engine:
    """An engine to measure or to ask a model with. It speaks for as many contexts at once as fit, `slots` at most; the others
    wait. InputError where one does not fit."""
    network = Network.load(model)
    return Engine(network, renderer=renderer, slots=fitting_slots(network, context, slots), context=context, version=version)


def fitting_slots(network: Network, context: int, wanted: int) -> int:
    """How many contexts an engine with this network, loaded already, may speak for at once: `wanted`, or as many as fit.
    InputError where one does not."""
    size, room = Size.of(network), free(device=network.head.weight.device.type)
    while wanted > 1 and cache(size, wanted, context) + speaking(size) > room:
        wanted //= 2
    if (least := cache(size, wanted, context) + speaking(size)) > room:
        raise InputError(
            f"this model does not fit into memory: to speak in a window of {context} tokens it needs {least / GIB:.1f} GiB "
            f"more and there are {room / GIB:.1f}: end other programs"
        )
    return wanted
