"""What a person does with the search agent: train it, measure it, ask it. Each function is a verb of the command line."""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.console import Console

from trivium.agents.search.estimate import estimate
from trivium.agents.search.recipe import Search
from trivium.agents.search.serve import answer, measure
from trivium.agents.search.train import check
from trivium.agents.search.train import train as run_recipe
from trivium.errors import InputError
from trivium.loops.run import Run, read_json
from trivium.policy import Renderer
from trivium.trace import Store
from trivium.viewer import Live, learning_curve, side_by_side, summary_table

Question = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="QUESTION")]
RunFolder = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]


def train(recipe: tyro.conf.OmitArgPrefixes[Search], dry_run: bool = False) -> None:
    """Train a search agent. Stopped or killed, the same command goes on where it was.

    Args:
        recipe: what the run is
        dry_run: print what the run will take (memory, tokens, time on this machine), and do nothing
    """
    check(recipe)
    console = Console()
    if dry_run:
        console.print(estimate(recipe), highlight=False, soft_wrap=True)
        return
    run_recipe(recipe, Live)
    _report(Run.open(recipe.out), recipe, console)


def eval(  # noqa: A001  (the verb's name)
    run: RunFolder,
    corpus: str = "",
    tasks: int = 256,
    split: str = "test",
    greedy: bool = False,
    seed: int = 1,
) -> None:
    """Measure a trained run on held-out questions, by default those of its own recipe.

    Args:
        run: the run's folder
        corpus: another folder in the BEIR layout to measure on
        tasks: how many questions
        split: which questions of --corpus
        greedy: take the most likely token instead of sampling
        seed: of the sampling
    """
    if tasks < 1:
        raise InputError(f"--tasks must be at least 1, not {tasks}")
    with Live() as watch:
        lines = measure(run, corpus, tasks, split, greedy, seed, watch)
    Console().print(lines, highlight=False)


def ask(run: RunFolder, question: Question, corpus: str, sample: bool = False) -> None:
    """Ask a trained agent about your documents: it searches, reads and prunes in the harness it was trained in.

    Args:
        run: the run's folder
        question: what to find
        corpus: a folder of text and Markdown, a JSONL file, or a folder in the BEIR layout
        sample: draw tokens as in training, instead of taking the most likely one
    """
    if not question.strip():
        raise InputError("the question is empty: say what to find")
    console = Console()
    for part in answer(run, question, corpus, not sample):
        console.print(part, highlight=False, markup=False, soft_wrap=True)


def _report(run: Run, recipe: Search, console: Console) -> None:
    """What a person sees when training has ended: three episodes side by side, the table, and where things are."""
    summary = read_json(run.folder / "summary.json")
    store = Store(run.folder / "episodes.db")
    task = _telling(store)
    columns = [(name, next(store.select(prefix=f"eval/{name}/{task}/"), None)) for name in ("base", "sft", "rl")]
    shown = [(name, episode) for name, episode in columns if episode]
    scores = {episode.id: {s.name: s.value for s in store.scores(episode.id)} for _, episode in shown}
    console.print(side_by_side(shown, console.width, Renderer.load(run.model()).decode, scores))
    console.print(summary_table(summary))
    learning_curve(run.events(), summary, run.folder / "curve.png")
    for name, place in (("table", "summary.json"), ("curve", "curve.png")):
        console.print(f"{name}: {run.folder / place}", highlight=False, soft_wrap=True)
    console.print(f"read on: trivium show {run.folder}", highlight=False, soft_wrap=True)


def _telling(store: Store) -> str:
    """The task whose held-out episode shows most: one that pruned if any did, of many hops."""
    return min(store.select(prefix="eval/rl/"), key=lambda e: (-len(e.ops), -e.task.truth.get("hops", 1), e.id)).task.id
