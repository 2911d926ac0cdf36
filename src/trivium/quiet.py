"""Keeps libraries from printing amid the output of a command."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def quiet() -> Generator[None]:
    """Run without transformers' progress bars."""
    from transformers.utils import logging  # brings torch, which a corpus without an embedder can do without

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
