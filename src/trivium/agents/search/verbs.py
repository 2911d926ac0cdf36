"""What a person does with the search agent alone: ask it."""

from __future__ import annotations

from typing import Annotated

import tyro

from trivium.agents.search.ask import answer
from trivium.errors import InputError
from trivium.recipe.show import RunFolder
from trivium.recipe.verbs import check_counts
from trivium.viewer import screen

Question = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="QUESTION")]


def ask(run: RunFolder, question: Question, corpus: str, sample: bool = False, rollouts: int = 1) -> None:
    """Ask a trained agent about your documents: it searches, reads and prunes in the harness it was trained in.

    Args:
        run: the run's folder
        question: what to find
        corpus: a folder of text and Markdown, a JSONL file, or a folder in the BEIR layout
        sample: draw tokens as in training, instead of taking the most likely one
        rollouts: attempt it so often, sampled, and fuse what the attempts return into one ranking
    """
    check_counts(rollouts=(rollouts, 1))
    for text, what in ((question, "question is empty: say what to find"), (corpus, "--corpus is empty: name your documents")):
        if not text.strip():
            raise InputError(f"the {what}")
    console = screen()
    for part in answer(run, question, corpus, not sample and rollouts == 1, rollouts):
        console.print(part)
