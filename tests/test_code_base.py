"""The shipped code base: small and stock, and its transcripts are what the house's renderer writes."""

from __future__ import annotations

import json
import random
import re

import pytest
from tokenizers import Tokenizer

from bases.code import data
from bases.code.transcript import SYSTEM, Coder, segments
from trivium.assets import CODE
from trivium.policy.render import Renderer
from trivium.policy.scripted import call, say
from trivium.tasks import projects
from trivium.trace import Piece


@pytest.fixture(scope="module")
def renderer():
    return Renderer.load(CODE)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(CODE / "tokenizer.json"))


def test_folder_is_small_and_stock():
    assert sum(file.stat().st_size for file in CODE.iterdir()) < 12_000_000
    config = json.loads((CODE / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"] and config["tie_word_embeddings"]


def test_a_word_is_the_same_tokens_wherever_it_stands(tokenizer):
    def inside(text: str) -> list[str]:
        tokens = tokenizer.encode(text).tokens
        return [token.strip("Ġ") for token in tokens]

    for word in ("fee", "varholm", "42", "total"):
        alone = inside(word)
        for text in (f"({word}, x)", f" {word} + 1", f'"{word}"', f'{{"path": " {word}.py"}}', f"check_{word}", f"a.{word}"):
            assert any(inside(text)[at : at + len(alone)] == alone for at in range(len(text))), (word, text)
    for text in ("naïve → 東京\n\n  f(x):", 'x = "\\n"\n', "<|im_start|>user\nhi<|im_end|>"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_transcripts_are_what_the_renderer_writes(renderer):
    for task in projects(30, (0, 1, 2, 3), seed=8, split="heldout"):
        whole = Coder(random.Random(0), task, errs=0.0, forgets=0.0).whole().whole
        opening = renderer.opening([{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.prompt}])
        assert whole.startswith(renderer.decode(opening))
        for edit in task.truth["edits"]:
            named = {"path": f" {edit['path']}", "old": edit["old"], "new": edit["new"]}
            assert renderer.decode(renderer.reply(call(("edit_file", named)))) in whole
        assert whole.endswith(renderer.decode(renderer.reply(say("Done."))))


def test_a_result_is_rendered_as_in_the_harness(renderer):
    task = projects(1, (0,), seed=5)[0]
    path = task.truth["edits"][0]["path"]
    opening = renderer.opening([{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.prompt}])
    reply = renderer.reply(call(("read_file", {"path": f" {path}"})))
    pieces = [Piece(task.truth["files"][path]), Piece("[Token usage: 0/1,536]")]
    placed = renderer.continuation(opening, reply, [{"role": "tool", "tool_call_id": "0", "pieces": pieces}])
    shown = opening + reply + [token for tokens, _ in placed for token in tokens]
    whole = Coder(random.Random(0), task, errs=0.0).whole().whole
    plain = re.sub(r"usage: [\d,]+/", "usage: 0/", whole).replace("\n\n[Token", "\n[Token")
    assert plain.startswith(renderer.decode(shown))


def test_every_copy_is_one_and_most_of_what_the_coder_says_is_copied(tokenizer):
    rng = random.Random(1)
    transcripts = [Coder(rng, task).whole() for task in projects(40, (0, 1, 2, 3), seed=2)]
    transcripts += [window for task in projects(4, (4, 5), seed=2) for window in segments(rng, task)]
    for transcript, example in zip(transcripts, data.encode(tokenizer, transcripts), strict=True):
        for copy in transcript.copies:
            copied = transcript.whole[copy.to : copy.to + copy.size]
            assert copied == transcript.whole[copy.source : copy.source + copy.size]
        assert len(example.ids) == len(example.weights)
        assert all(example.ids[at + 1] == example.ids[source] and source <= at for at, source in example.looks)


def test_long_sessions_end_each_window_but_the_last_in_a_summary_that_leads_on():
    for task in projects(4, (4, 5), seed=3):
        windows = segments(random.Random(0), task)
        assert len(windows) >= 2 and windows[-1].whole.endswith("Done.<|im_end|>")
        for before, after in zip(windows, windows[1:], strict=False):
            summary = before.whole.rpartition("Summary:\n")[2].removesuffix("<|im_end|>")
            assert summary.startswith("Done:") and f"Your summary so far:\n{summary}\n" in after.whole


def test_it_edits_files_with_names_that_it_has_never_met(tokenizer):
    import torch
    from transformers import AutoModelForCausalLM

    from bases.code import probe

    torch.set_num_threads(1)
    net = AutoModelForCausalLM.from_pretrained(CODE, dtype=torch.float32)
    measured = probe.scores(net, tokenizer, 16)
    assert measured["edit0"][0] >= 0.15 and measured["call0"][0] >= 0.6
