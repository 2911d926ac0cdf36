"""Invented names: people, companies, cities, products, from a small inventory of syllables.

Every word is a start, sometimes a middle, and an ending that hints at what it names (`Varholm` is a city, `Milla` a
given name). The syllables are few, so that a small tokenizer can hold each as one token, and a word is two or three
tokens. The words are many, so that an unseen name is the rule, and copying it is a skill and no memory.
"""

from __future__ import annotations

import random
import zlib
from typing import Literal

Split = Literal["train", "heldout"]
Kind = Literal["person", "company", "city", "product", "river", "school"]

HELDOUT_PERCENT = 10
"""Share of words that only `split="heldout"` uses, in percent."""

_ONSETS = "B Br C D Dr F G Gr H J K Kr L M N P R S St T Tr V W Y Z".split()
_RIMES = "al am an ar el em en er il in ol om on or ul un".split()
STARTS = tuple(onset + rime for onset in _ONSETS for rime in _RIMES)
MIDDLES = tuple("a e i o u an el en il in ol on or ar er us".split())
ENDINGS: dict[str, tuple[str, ...]] = {
    "given": tuple("da dra bina gus kas la lia mon na nia nor ric rin ro sa sia tia ton vin vo wyn zo".split()),
    "family": tuple(
        "bach beck berg dahl der dov feld gard ger kin land ley lund man mark mer ner quist sen "
        "sky son ster strom tner vich ward wick wood zer".split()
    ),
    "company": tuple(
        "bex cor dex dyne fex flux gen ix lab lex lix max mix nex nix on plex rex tec tek tix tron vax vex xis xon zen".split()
    ),
    "trade": tuple(
        "bank bolt craft fab field forge guild haven line link logic mill port press shore source "
        "stone trade ways works yard".split()
    ),
    "city": tuple(
        "burg bury by chester dale dam fell ford gate grad ham haven holm hurst mar minster mouth "
        "polis shire stad stead thorpe ton ville vik wall wich".split()
    ),
    "product": tuple(
        "bit card cast cell disk drop fix kit mate matic pad pod scope shot spin stat tab tone trak via wave zip".split()
    ),
    "river": tuple("beck bourne brook dore eden esk ness rill sel ser tane tees une ver wash".split()),
    "school": tuple("bridge brook croft don field ford grove hall hurst leigh more stow worth".split()),
}
_WORDS_OF: dict[Kind, tuple[str, ...]] = {
    "person": ("given", "family"),
    "company": ("company", "trade"),
    "city": ("city",),
    "product": ("product",),
    "river": ("river",),
    "school": ("school",),
}
KINDS: tuple[Kind, ...] = tuple(_WORDS_OF)


def split_of(word: str) -> Split:
    """The split a word belongs to, by a stable hash of its letters: the same on every machine and in every run."""
    return "heldout" if zlib.crc32(word.lower().encode()) % 100 < HELDOUT_PERCENT else "train"


def word(rng: random.Random, role: str, split: Split = "train") -> str:
    """One capitalised word of `split` whose ending fits `role` (a key of `ENDINGS`), such as `Varnholm` for "city"."""
    while True:
        middle = rng.choice(MIDDLES) if rng.random() < 0.3 else ""
        name = rng.choice(STARTS) + middle + rng.choice(ENDINGS[role])
        if split_of(name) == split:
            return name


def name(rng: random.Random, kind: Kind, split: Split = "train") -> str:
    """A name of `kind`, its words from `split`: `Mirla Tolberg` (person), `Brennix Kelforge` (company), `Varby` (city).

    The same `rng` state gives the same name. Two-word kinds have about 10^10 names, one-word kinds over 80 000 each.
    """
    return " ".join(word(rng, role, split) for role in _WORDS_OF[kind])
