"""What a person does with the search agent alone: ask it, or any model in its harness."""

from __future__ import annotations

from typing import Annotated

import tyro

from trivium.agents.search.ask import answer, answer_outside
from trivium.errors import InputError
from trivium.recipe.outside import Outside
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
    _check(question, corpus, rollouts)
    console = screen()
    for part in answer(run, question, corpus, not sample and rollouts == 1, rollouts):
        console.print(part)


def ask_outside(
    question: Question, corpus: str, outside: tyro.conf.OmitArgPrefixes[Outside], sample: bool = False, rollouts: int = 1
) -> None:
    """Ask any model about your documents, in the search agent's harness: its tools, window and pruning.

    Args:
        question: what to find
        corpus: a folder of text and Markdown, a JSONL file, or a folder in the BEIR layout
        outside: which model speaks, and what it may cost
        sample: draw tokens at temperature 1, instead of taking the most likely one
        rollouts: attempt it so often, sampled, and fuse what the attempts return into one ranking
    """
    _check(question, corpus, rollouts)
    outside.check()
    console = screen()
    for part in answer_outside(outside, question, corpus, not sample and rollouts == 1, rollouts):
        console.print(part)


def _check(question: str, corpus: str, rollouts: int) -> None:
    check_counts(rollouts=(rollouts, 1))
    for text, what in ((question, "question is empty: say what to find"), (corpus, "--corpus is empty: name your documents")):
        if not text.strip():
            raise InputError(f"the {what}")
