"""The nano tokenizer: byte-level BPE of 4096 tokens behind Qwen's pre-tokenizer, digits apart, Qwen3's special tokens.

The merges of the syllables of invented names are frequent in the training text, so that a word of a name is two or three
tokens; the rest comes from the standard library's documentation and from statements and questions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from bases.nano import data
from trivium.tasks.names import ENDINGS, MIDDLES, STARTS

VOCAB = 4096
SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
CONTROL = SPECIALS[:3]
QWEN_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def corpus(seed: int) -> Iterator[str]:
    """Texts to learn merges from: syllables (with and without a leading space), trajectories, library text."""
    rng = random.Random(seed)
    endings = sorted({e for ends in ENDINGS.values() for e in ends} | set(MIDDLES))
    for _ in range(60):  # a syllable alone is a word of its own, so that its merges win over those across syllables
        yield "".join(f" {s} {s}\n{s}\n" for s in STARTS)
        yield "".join(f"\n{e}" for e in endings)
    for _ in range(100):
        library = data.Library(rng, "train", 400)
        for question, links in library.questions(rng.choice((1, 2)), 40):
            yield "".join(p.text for p in data.trajectory(library, question, links, 4, False))
    texts = data.library_texts()
    for text in texts:
        yield text[:20000]


def train(seed: int = 0) -> Tokenizer:
    """The tokenizer, the same for the same seed and Python version."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(seed), trainer)
    return marks_are_text(tokenizer)


def marks_are_text(tokenizer: Tokenizer) -> Tokenizer:
    """As in Qwen3, tool and think marks are single tokens that decoding shows, so that servers can parse what was said."""
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] in CONTROL
    return Tokenizer.from_str(json.dumps(state, ensure_ascii=False))


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` (with the chat template) as transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 4096,
        "chat_template": TEMPLATE.read_text(encoding="utf-8"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
