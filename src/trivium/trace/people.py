"""Whose episode it is, and on whom a lot falls: in every process, restart and cycle the same."""

from __future__ import annotations

from blake3 import blake3

SERVED = "served/"
"""How the ids of episodes begin that people had."""


def user_of(account: str, session: str) -> str:
    """The user whom a request named (an `account` is `KEY/USER`), or, where it named none, its conversation: one key may stand
    for everybody who uses an application."""
    return account if "/" in account or not session else session


def is_drawn(lot: str, share: float) -> bool:
    """Whether a lot (a name with what it is drawn for) is among the `share` of all lots, from 0 to 1: by a hash."""
    number = int.from_bytes(blake3(lot.encode(errors="replace")).digest(8), "big")
    return number < share * 2**64
