"""The code base's tokenizer: byte-level BPE of 2048 tokens in which a word is the same tokens wherever it stands.

Qwen's pre-tokenizer glues a space or a bracket to the word behind it, so that `(fee`, ` fee` and `"fee` are different tokens,
and a small model that copies a line into a JSON string has to translate. Here letters stand alone, punctuation takes the spaces
around it, a quote begins a token of its own, and a number below 100 is one token. Qwen3's special tokens and template are kept.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from bases.code.transcript import Coder
from bases.nano import data
from bases.nano.tokenizer import SPECIALS, marks_are_text
from trivium.tasks.names import ENDINGS, MIDDLES, STARTS
from trivium.tasks.projects import projects

VOCAB = 2048
SPLIT = r'\\n|\\|\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}\\"]+(?: (?! ))?|"[^\s\p{L}\p{N}\\"]*(?: (?! ))?|[\r\n]+| +|\s'


def corpus(seed: int) -> Iterator[str]:
    """Texts to learn merges from: syllables, numbers, transcripts, and the sources of the standard library."""
    endings = sorted({e for ends in ENDINGS.values() for e in ends} | set(MIDDLES))
    for _ in range(200):
        yield "".join(f"{s.lower()} " for s in STARTS)
        yield "".join(f"{e} " for e in endings)
        yield "".join(f"{n} " for n in range(100))
    rng = random.Random(seed)
    for task in projects(1500, (0, 1, 2, 3), seed):
        yield Coder(rng, task).whole().whole
    for text in data.library_texts():
        yield text[:3000]


def train(seed: int = 0) -> Tokenizer:
    """The tokenizer, the same for the same seed and Python version."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
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
