"""A transformers decoder whose attention is ours: one forward for the engine's cache and the learner's packed rows.

transformers is not patched. Its AttentionInterface knows one function of ours, "trivium", which hands queries, keys and
values to the `view` that came with the forward pass; the view decides what each token sees and where keys are kept.
"""

from __future__ import annotations

import copy
import shutil
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import blake3
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from trivium import files
from trivium.errors import CorruptError, InputError, Unsupported
from trivium.nn.divergence import divergence
from trivium.nn.heap import one_arena
from trivium.nn.linear import Linear, linear
from trivium.nn.logprobs import logprobs
from trivium.nn.lora import merged
from trivium.nn.packed import Packed
from trivium.nn.shard import part, whole
from trivium.quiet import quiet

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

_NO_MASK = {"full_attention": None, "sliding_attention": None}
_MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "chat_template*")
_SKIPPED = ("self_attn.q_proj", "self_attn.o_proj", "mlp")
"""Modules that the last layer runs only for the places that a pass asks for. Keys and values are computed for all places."""

_places: ContextVar[tuple[torch.Tensor, int] | None] = ContextVar("places", default=None)
"""While a pass runs that asks for some places only: these places, ascending, and the number of all."""


class View(Protocol):
    """What the tokens of one forward pass may see."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
        """q [B, H, n, D], k and v [B, Hkv, n, D], rotated -> [B, n, H, D]. A pass calls it once for each layer, in order."""
        ...


def _attention(
    module: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    view: View | None = None,
    dropout: float = 0.0,
    **extra: Any,
) -> tuple[torch.Tensor, None]:
    """The one function behind "trivium": everything a view cannot honour is an error (law 7)."""
    if view is None:
        raise Unsupported("a Network runs under a view (Packed, or the engine's cache): call hidden(), not the model")
    if attention_mask is not None:
        raise Unsupported(f"{type(module).__name__} masks or weighs its keys; a Network's view alone says what is seen")
    options = [name for name in ("softcap", "s_aux") if extra.get(name) is not None]
    if options or dropout:
        what = options[0] if options else "dropout"
        raise Unsupported(f"{type(module).__name__} wants {what}; a Network has plain full attention only")
    return view.attend(module.layer_idx, q, k, v, scaling), None


AttentionInterface.register("trivium", _attention)


def _gather(module: torch.nn.Module, args: tuple) -> tuple | None:
    """A hook before a module of the last layer: it gets only the places that the pass asks for."""
    return None if (places := _places.get()) is None else (args[0].index_select(1, places[0]), *args[1:])


def _spread(module: torch.nn.Module, args: tuple, out: Any) -> torch.Tensor | None:
    """A hook after it: what it computed goes back to its places, with zeros elsewhere."""
    if (places := _places.get()) is None:
        return None
    if not isinstance(out, torch.Tensor):
        raise Unsupported(f"{type(module).__name__} gives more than hidden states, which a Network has no use for")
    at, length = places
    return out.new_zeros(1, length, out.shape[-1]).index_copy(1, at, out)


class Network(torch.nn.Module):
    """A causal language model whose layers attend to all, or slide within their window (Qwen3, Llama, ... by transformers).

    `network.model` is transformers' own model, and its parameters are the network's. `folder` is where it was loaded from.
    `sharded` networks (nn.shard) are spread over ranks, and all ranks together call what reads or runs them.
    `adapted` networks (nn.lora) learn small adapters in place of their weights.
    """

    sharded = False
    adapted = False
    alpha = 0.0  # the adapters' factor, which stands in no tensor

    def __init__(self, config: PretrainedConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        """A fresh network of `config`. The same seed gives the same weights. Raises Unsupported for other layer types."""
        super().__init__()
        _check_layers(config)
        config = copy.deepcopy(config)  # transformers writes the attention's name into it
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="trivium")
        self._adopt(model)

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Network:
        """The network in a Hugging Face folder, or of that name in the local Hugging Face cache.

        Raises InputError if there is no such network. Raises CorruptError if its files are torn, or weights are missing or not
        finite. Raises Unsupported for layers of other types.
        """
        folder = _folder(path)
        try:
            _check_layers(AutoConfig.from_pretrained(folder))
            with quiet():
                model, info = AutoModelForCausalLM.from_pretrained(  # ty: ignore[not-iterable] # a pair, with loading info
                    folder, dtype=dtype, attn_implementation="trivium", output_loading_info=True
                )
        except Unsupported:
            raise
        except Exception as error:  # there are as many ways to be no network as fields in its files
            raise CorruptError(f"the network in {folder} does not load: {type(error).__name__}: {error}") from error
        if keys := sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"]):
            raise CorruptError(f"the weights in {folder} lack {keys[0]} and {len(keys) - 1} more")
        network = cls.__new__(cls)
        torch.nn.Module.__init__(network)
        network._adopt(model.to(device), folder)
        return network

    def _adopt(self, model: PreTrainedModel, folder: Path | None = None) -> None:
        one_arena()
        self.model = model
        self.folder = folder
        self.loads = 0  # how often its weights were replaced, for an engine to compare
        self.eval()
        for module in self.modules():
            if type(module) is torch.nn.Linear:
                module.__class__ = Linear
        last = getattr(model.base_model, "layers", [torch.nn.Module()])[-1]
        for name, module in last.named_modules():
            if name in _SKIPPED:
                module.register_forward_pre_hook(_gather)
                module.register_forward_hook(_spread)
        _check_forward(self)

    @property
    def config(self) -> PretrainedConfig:
        return self.model.config

    @property
    def head(self) -> torch.nn.Linear:
        """The output projection, [vocabulary, d]."""
        return self.model.get_output_embeddings()

    @property
    def reach(self) -> int | None:
        """The longest context in which every layer still sees all of it; None where no layer slides."""
        slides = "sliding_attention" in _layer_types(self.config)
        return self.config.sliding_window if slides else None

    def check_context(self, tokens: int) -> None:
        """InputError for a context of no tokens, or longer than the model's; Unsupported where not all layers would see it."""
        limit = getattr(self.config, "max_position_embeddings", tokens)
        if not 0 < tokens <= limit:
            raise InputError(f"the context of {tokens} tokens is none, or longer than this model's {limit}")
        if self.reach and tokens > self.reach:
            raise Unsupported(f"the context of {tokens} tokens is longer than sliding_attention layers see here: {self.reach}")

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, view: View, at: torch.Tensor | None = None) -> torch.Tensor:
        """Final hidden states: tokens, positions int64 [N] or [B, n] -> [N, d] or [B, n, d]. A run [N] is a batch of one.

        With `at` int64 [M], places of a run [N], it returns only theirs, [M, d]. For the other places the last layer then
        computes little but keys and values.
        """
        if at is not None and tokens.dim() != 1:
            raise InputError("places are asked for in one run of tokens [N], not in a batch of rows")
        if tokens.dim() == 1:
            return self(tokens[None], positions[None], view, at)[0]
        return self(tokens, positions, view)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, view: View, at: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`hidden` of a batch [B, n]. It has this name because FSDP2 gathers weights around `forward`."""
        if self.reach and positions.device.type == "cpu" and int(positions.max()) >= self.reach:  # a GPU would have to wait
            kind, reach = self.config.model_type, self.reach
            raise Unsupported(f"{kind} has sliding_attention layers that see {reach} tokens: give a window of no more")
        before = _places.set(None if at is None else (at.unique(), tokens.shape[1]))
        try:
            out = self.model.base_model(
                input_ids=tokens, position_ids=positions, attention_mask=_NO_MASK, use_cache=False, view=view
            )
        finally:
            _places.reset(before)
        return out.last_hidden_state if at is None else out.last_hidden_state.index_select(1, at)

    def recompute(self, on: bool) -> None:
        """Whether a pass with gradients keeps of each layer but the last only what enters it, and backward computes the layer
        again (transformers' activation checkpointing): the memory of a layer or two for a third more time, and the same bits.

        Unsupported, where it is asked for, if transformers has no such switch in this model's layers.
        """
        layers = list(getattr(self.model.base_model, "layers", ()))[:-1]  # the last runs for places that backward forgot
        if on and not all(isinstance(layer, GradientCheckpointingLayer) for layer in layers):
            raise Unsupported(f"{self.config.model_type} has layers that transformers cannot compute again in backward")
        for layer in layers:
            layer.training = layer.gradient_checkpointing = on  # of the layer alone: what is in it stays as in evaluation
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [..., d] -> logits [..., vocabulary], float32 (float64 in a float64 network). For a few tokens."""
        with torch.autocast(hidden.device.type, enabled=False):
            logits = linear(hidden.to(self.head.weight.dtype), self.head.weight)
        return logits if logits.dtype == torch.float64 else logits.float()

    def logprobs(
        self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability of each target and entropy of its distribution (nats, without gradient): two [N] in float32.

        hidden [N, d], targets int64 [N], temperature > 0, one for all or [N]. No [N x vocabulary] tensor ever exists.
        """
        return logprobs(hidden, self.head.weight, targets, temperature)

    def divergence(self, hidden: torch.Tensor, teacher: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        """KL of the distribution at `hidden` [N, d] from that at `teacher` [N, d], which has no gradient: nats, [N]."""
        return divergence(hidden, teacher, self.head.weight, temperature)

    def state(self) -> dict[str, torch.Tensor]:
        """The weights by name, detached and not copied (gathered, if sharded). Tied ones stand once, under their first name.

        Of an adapted network they are those of a plain one that computes the same, so that engines and folders know no
        adapters.
        """
        return merged(self.model, self.own_state()) if self.adapted else self.own_state()

    def own_state(self) -> dict[str, torch.Tensor]:
        """`state`, but with adapters beside the weights that they stand on. `load_state` takes it, and checkpoints hold it."""
        return {name: whole(tensor) for name, tensor in self._local_state().items()}

    def plain(self) -> Network:
        """A copy without adapters that computes the same."""
        if not self.adapted:
            return copy.deepcopy(self)
        network = Network(self.config, dtype=self.head.weight.dtype).to(self.head.weight.device)
        network.load_state(self.state())
        network.folder = self.folder
        return network

    def _local_state(self) -> dict[str, torch.Tensor]:
        """What this rank has of the weights, as `own_state` names them."""
        if self.sharded:
            cast("FSDPModule", self).reshard()  # a forward pass without a backward one leaves some of them gathered
        ids: set[int] = set()
        tensors = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if id(tensor) not in ids:
                ids.add(id(tensor))
                tensors[name] = tensor.detach()
        return tensors

    @torch.no_grad()
    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take over an `own_state`, in place, cast to the network's dtype. InputError, and no change, if it does not fit."""
        weights = self._local_state()
        if names := sorted(weights.keys() ^ state.keys()):
            raise InputError(f"these weights are of another network: {names[0]} is on one side only")
        for name, tensor in weights.items():
            if tensor.shape != state[name].shape:
                raise InputError(f"{name} has shape {list(state[name].shape)}, the network wants {list(tensor.shape)}")
        self.loads += 1  # first: where copying breaks half-way, no engine may go on with what is there
        for name, tensor in weights.items():
            tensor.copy_(part(state[name], tensor))

    def digest(self) -> str:
        """blake3 (hex) of the names and bytes of all weights, in the order of their names."""
        return digest(self.state())

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write a Hugging Face folder: config, weights in `dtype` (default: as they are), tokenizer files unchanged.

        The folder appears whole or not at all. Raises InputError if it exists and is not empty. Of a sharded network's ranks
        the first one writes.
        """
        folder, state = Path(folder), self.state()
        if self.sharded and dist.get_rank():
            return
        with files.new_folder(folder) as temporary:
            self._write(temporary, state, dtype)

    def _write(self, folder: Path, state: dict[str, torch.Tensor], dtype: torch.dtype | None) -> None:
        tensors = {name: value.to(dtype or value.dtype) for name, value in state.items()}
        with quiet(), files.full_disk():
            self.model.save_pretrained(folder, state_dict=tensors)
        config = copy.deepcopy(self.config)
        config.dtype = dtype or config.dtype
        config.save_pretrained(folder)
        if self.folder is not None:
            tokenizer = [file for pattern in _TOKENIZER_FILES for file in self.folder.glob(pattern)]
            for file in filter(Path.is_file, tokenizer):  # what a folder holds beside them is not the model
                shutil.copy(file, folder / file.name)
        for file in folder.iterdir():
            file.chmod(0o644)  # safetensors lets nobody else read, and who serves may be somebody else


def digest(state: dict[str, torch.Tensor]) -> str:
    """blake3 (hex) of names, dtypes, shapes and bytes, in the order of the names. It is equal only for equal tensors."""
    hasher = blake3.blake3()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        hasher.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        hasher.update(memoryview(tensor.flatten().view(torch.uint8).numpy()))
    return hasher.hexdigest()


def _folder(path: str | Path) -> Path:
    """The local folder of a network: the path itself, or what the cache has of that name. A name mistyped is fetched from
    nowhere: a stranger may have one."""
    if (Path(path) / "config.json").is_file():
        return Path(path)
    if Path(path).exists() or str(path).startswith((".", "/")):
        raise InputError(f"{path} holds no network: no config.json there{files.model_inside(Path(path))}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(path), allow_patterns=_MODEL_FILES, local_files_only=True))
    except Exception as error:  # the hub has a dozen ways to say no
        advice = f"fetch it with `hf download {path}`"
        raise InputError(f"{path} is neither a folder here nor a network in the local cache: {advice}") from error


def _layer_types(config: PretrainedConfig) -> set[str]:
    types = set(getattr(config, "layer_types", None) or [])
    return types or ({"sliding_attention"} if getattr(config, "sliding_window", None) else set())


def _check_layers(config: PretrainedConfig) -> None:
    """Raise Unsupported, naming it, for a layer that never attends to all, and for positions that other rows would change."""
    if others := sorted(_layer_types(config) - {"full_attention", "sliding_attention"}):
        raise Unsupported(
            f"{config.model_type} has {others[0]} layers; a Network has full_attention, and sliding_attention within its window"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {each.get("rope_type") for each in (rope, *rope.values()) if isinstance(each, dict)}
    if wide := sorted({"dynamic", "longrope"} & kinds):
        raise Unsupported(f"{config.model_type} has {wide[0]} RoPE, which turns every row by the longest one it is packed with")


@torch.no_grad()
def _check_forward(network: Network) -> None:
    """Check a model on four tokens: every layer attends through our view, with heads of one width; a place that is asked for
    alone has the states of a whole pass; our head is the model's (no soft cap, scale, bias)."""
    device = network.head.weight.device
    tokens, view = torch.arange(4, device=device), _Counting([4])
    positions = view.positions.to(device)
    hidden = network.hidden(tokens, positions, view)
    logits = network.logits(hidden)
    kind, layers = network.config.model_type, network.config.num_hidden_layers
    if view.calls != list(range(layers)):
        raise Unsupported(f"{kind} has {layers} layers, of which {len(view.calls)} attend through trivium's attention")
    if len(view.widths) > 1:
        raise Unsupported(f"{kind} has queries, keys and values of {sorted(view.widths)} numbers a head, and not of one width")
    last = network.hidden(tokens, positions, Packed([4]), tokens[3:])
    if not torch.allclose(last, hidden[3:], rtol=1e-2, atol=1e-3, equal_nan=True):
        raise Unsupported(f"{kind} mixes tokens beside its attention; a Network computes some of them without the others")
    model_logits = network.model(
        input_ids=tokens[None], position_ids=positions[None], attention_mask=_NO_MASK, use_cache=False, view=Packed([4])
    ).logits[0]
    if not torch.isfinite(model_logits).all() or not all(weight.isfinite().all() for weight in network.parameters()):
        raise CorruptError(f"the weights of this {kind} hold NaN, or numbers so large that logits are not finite")
    if not torch.allclose(logits, model_logits.to(logits.dtype), rtol=1e-2, atol=1e-3):
        raise Unsupported(f"{kind} caps, scales or shifts its logits after the output projection; a Network does not")


class _Counting(Packed):
    """A Packed that notes the order in which layers attend, and how wide their heads are."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(lengths)
        self.calls: list[int] = []
        self.widths: set[int] = set()

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
        self.calls.append(layer)
        self.widths |= {x.shape[-1] for x in (q, k, v)}
        return super().attend(layer, q, k, v, scaling)
