"""The shipped nano base: a stock Qwen3 folder that transformers and renderers load, small, and able to do its part."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from bases.nano import data, probe
from bases.nano.pages import Shelf, walk
from trivium.assets import READER
from trivium.tasks import names

FOLDER = Path(__file__).parents[1] / "src" / "trivium" / "assets" / "nano"


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
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


def test_the_base_that_reads_has_the_same_words_and_knows_pages_by_what_they_say():
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    assert (READER / "tokenizer.json").read_bytes() == (FOLDER / "tokenizer.json").read_bytes()
    reader = AutoModelForCausalLM.from_pretrained(READER, dtype=torch.float32)
    read = Tokenizer.from_file(str(READER / "tokenizer.json"))
    assert probe.measure(reader, read, probe.probes(30)["pages4"]).greedy >= 0.6
    assert probe.measure(reader, read, probe.probes(30)["query"]).greedy >= 0.9


def test_a_question_s_pages_are_in_view_among_others_that_fit_it_less():
    shelf, rng = Shelf(3, "heldout", 60), random.Random(0)
    assert {len(gold) for _, gold in shelf.asked} == {1, 2}
    for question, gold in rng.sample(shelf.asked, 40):
        lines = shelf.lines(rng, question, gold, 4)
        assert sorted(line.text for line in lines if line.gold) == sorted(shelf.text[doc] for doc in gold)
        assert 2 <= len(lines) <= 4 and len({line.text for line in lines}) == len(lines)


def test_a_walk_over_pages_ends_with_the_handles_of_those_that_answer():
    shelf, rng = Shelf(3, "heldout", 60), random.Random(0)
    for question, gold in rng.sample(shelf.asked, 40):
        lines = shelf.lines(rng, question, gold, 4)
        pieces = walk(rng, question, lines, prunes=0.0)
        handles = {piece.handles[0]: piece.line.gold for piece in pieces if piece.line}
        assert len(handles) == len(lines) and list(pieces[-1].handles) == [h for h, right in handles.items() if right]


def test_calls_sampled_at_temperature_one_parse(model, tokenizer):
    assert probe.valid_turns(model, tokenizer, 10) >= 0.96
