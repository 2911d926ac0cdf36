"""A GGUF file, llama.cpp's form of a model, as a plain Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trivium import files
from trivium.errors import InputError
from trivium.quiet import quiet


def convert(file: Path, folder: Path) -> None:
    """Write the model in `file` as `folder`: config, bfloat16 weights, tokenizer with its template. The folder appears whole or
    not at all. InputError for a file that is torn, or of an architecture that transformers cannot read."""
    try:
        with quiet():
            tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except Exception as error:  # there are as many ways to be no GGUF as fields in it
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise InputError(
            f"{file} is no GGUF that can be read, or a part of one is missing: fetch it again ({reason})"
        ) from error
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # transformers takes it for quantized still, and would not save it
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    with files.new_folder(folder) as new, quiet(), files.full_disk():
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        for written in new.iterdir():
            written.chmod(0o644)  # safetensors lets nobody else read
