"""The shipped nano base: a stock Qwen3 folder that transformers and renderers load, small, and able to do its part."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bases.nano import data, probe
from trivium.tasks import names

FOLDER = Path(__file__).parents[1] / "src" / "trivium" / "assets" / "nano"


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


def test_folder_is_small_and_stock():
    assert sum(f.stat().st_size for f in FOLDER.iterdir()) < 12_000_000
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"] and config["tie_word_embeddings"]
    assert config["max_position_embeddings"] == 4096 and config["vocab_size"] == 4096


def test_tokenizer_gives_text_back_and_splits_digits(tokenizer):
    for text in ("Brennix Holt 10-K: led by Mira Tolen. #12\n", "naïve → 東京\n\n  f(x):", "<|im_start|>user\nhi<|im_end|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(" #317")) == 4


def test_a_name_is_the_same_tokens_in_json_as_in_text(tokenizer):
    rng = random.Random(0)
    for kind in names.KINDS:
        name = names.name(rng, kind, "heldout")
        inside = tokenizer.encode(f'{{"query": " {name} maker"}}')
        alone = tokenizer.encode(f" {name}")
        assert any(inside[i : i + len(alone)] == alone for i in range(len(inside)))
        assert len(alone) <= 5 * len(name.split())


def test_renderer_and_template_agree(tokenizer):
    from renderers import Qwen3Renderer

    call = {"function": {"name": "search_corpus", "arguments": {"query": " Brennix Holt maker"}}}
    messages = [
        {"role": "system", "content": data.SYSTEM},
        {"role": "user", "content": "Who runs Brennix Holt?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Brennix Holt: led by Mira Tolen. #1\n[Token usage: 90/512]"},
    ]
    tools = [{"type": "function", "function": {"name": "search_corpus", "parameters": {"type": "object"}}}]
    for given in (None, tools):
        rendered = Qwen3Renderer(tokenizer).render_ids(messages, tools=given, add_generation_prompt=True)
        template = tokenizer.apply_chat_template(messages, tools=given, add_generation_prompt=True, tokenize=False)
        assert tokenizer.encode(template) == rendered


def test_renderer_parses_the_calls_the_base_was_taught(tokenizer):
    from renderers import Qwen3Renderer

    tokens = tokenizer.encode(data.keep_call([1, 15]) + "<|im_end|>")
    (asked,) = Qwen3Renderer(tokenizer).parse_response(tokens).tool_calls
    assert asked.name == "prune_chunks" and asked.arguments == {"keep": [" #1", " #15"]}


FLOORS = {"query": 0.95, "rec8": 0.9, "hop4": 0.75, "answer2": 0.85, "keep4": 0.85}


@pytest.mark.parametrize(("skill", "floor"), FLOORS.items())
def test_skill_on_held_out_names(model, skill, floor):
    from tokenizers import Tokenizer

    measured = probe.measure(model, Tokenizer.from_file(str(FOLDER / "tokenizer.json")), probe.probes(30)[skill])
    assert measured.greedy >= floor


def test_calls_sampled_at_temperature_one_parse(model, tokenizer):
    assert probe.valid_turns(model, tokenizer, 10) >= 0.96
