"""Weights of a Hugging Face folder that hold NaN or infinity, found without building the network."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from trivium.errors import CorruptError, InputError


def not_finite(folder: str | Path) -> list[str]:
    """The names of the tensors in `folder` that hold a number which is none, one tensor in memory at a time. InputError for a
    folder without weights, CorruptError for a torn file."""
    if not (paths := sorted(Path(folder).glob("*.safetensors"))):
        raise InputError(f"{folder} holds no weights: no *.safetensors there")
    names = []
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                names += [name for name in file.keys() if not file.get_tensor(name).isfinite().all()]
        except (SafetensorError, OSError) as error:
            raise CorruptError(f"{path} is torn: {error}") from error
    return names
