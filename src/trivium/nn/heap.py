"""How glibc's malloc keeps what networks free."""

from __future__ import annotations

import ctypes
from functools import cache

_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's malloc.h."""


@cache
def one_arena() -> None:
    """From now on new threads allocate from the process's one arena. On another C library nothing changes.

    glibc gives each thread an arena of its own, and what is freed there serves that arena alone. A learner's steps run in
    whichever thread is free, so that each thread came to keep a whole pass of activations: SmolLM2's warm-up took 10.5 GB
    by its third step, and 7.5 so (docs/train.md). What it costs, a lock that threads share, is small
    beside a network's allocations, which are few and large.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_ARENA_MAX, 1)


def give_back() -> None:
    """Give the system what was freed. malloc keeps it, in holes that the next passes fill less and less well: SmolLM2's
    warm-up took .3 GB more with every step."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
