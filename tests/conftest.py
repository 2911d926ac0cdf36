"""What every test may use: a tiny Qwen3 with a byte tokenizer, made in a second, and its renderer."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.openai_server import Server

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
]  # fmt: skip


def make_tiny_model(folder: Path) -> Path:
    """A Qwen3 of some 100k parameters that speaks bytes: one token a byte, no merges."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIALS})
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=4096, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def renderer(tiny_model):
    from trivium.policy import Renderer

    return Renderer.load(tiny_model)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts servers of the OpenAI API (tests/openai_server.py): `serve(answer, answer, ...)`."""
    running = []

    def start(*script: Any) -> Server:
        running.append(Server(*script))
        threading.Thread(target=running[-1].serve_forever, args=(0.01,), daemon=True).start()
        return running[-1]

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


LONG = (
    "test_same_run.py", "test_cli.py", "test_own_agent.py", "test_nano.py", "test_compare.py", "test_examples.py",
    "test_real.py", "test_words.py", "test_reading.py", "test_harvest.py", "test_unscored.py", "test_swarm.py", "test_fleet.py",
    "test_data_parallel.py", "test_shard.py", "test_s3.py", "test_page.py",
)  # fmt: skip
"""Files that take longest: begun first, so that no worker ends a test run alone with one of them. (xdist would begin
with those that have most tests: --no-loadscope-reorder.)"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
