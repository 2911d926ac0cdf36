"""What a word is: the one notion of it that chunking, indexing and queries share."""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import lru_cache

import snowballstemmer

# Scripts written without spaces (kana, Han, Hangul) count by the character: a sentence would be one word otherwise.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")

_MARKS = str.maketrans("™℠", "  ")  # behind a name; NFKD would make them letters of it

# Lucene's English stop words plus the question words: they say what is asked for, not what the page says.
STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they
    this to was will with what which who whom whose when where why how did do does has have had been were
    from""".split()
)

# A stemmer keeps the word it works on in itself: each thread has its own.
_own = threading.local()


def words(text: str) -> list[str]:
    """The words of `text` in order, in small letters and without accents. Punctuation, quotes and underscores part
    words."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text.translate(_MARKS))
        text = unicodedata.normalize("NFC", "".join(c for c in text if not unicodedata.combining(c)))
    return _WORD.findall(text.lower())


def count_words(text: str) -> int:
    """How many words `text` has: the default length of a chunk."""
    return len(_WORD.findall(text))


@lru_cache(maxsize=1 << 18)
def stem(word: str) -> str:
    """Snowball's English stem; words of other scripts and numbers come back as they are."""
    if not hasattr(_own, "stemmer"):
        _own.stemmer = snowballstemmer.stemmer("english")
    return _own.stemmer.stemWord(word)


def stems(text: str) -> list[str]:
    return [stem(word) for word in words(text)]


def query_stems(query: str) -> list[str]:
    """The different stems of a query in order, without stop words; of a query of stop words alone, all of them."""
    terms = list(dict.fromkeys(words(query)))
    content = [word for word in terms if word not in STOP_WORDS]
    return list(dict.fromkeys(stem(word) for word in content or terms))
