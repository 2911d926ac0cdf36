"""Libraries that would talk amid what a command prints."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def quiet() -> Generator[None]:
    """Without transformers' progress bars."""
    from transformers.utils import logging  # brings torch, which a corpus without an embedder can do without

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
