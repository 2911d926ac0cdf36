"""What a person does with the search agent: train it, measure it, ask it. Each function is a verb of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from trivium.agents.search.compare import compare as claim
from trivium.agents.search.compare import histories
from trivium.agents.search.estimate import estimate
from trivium.agents.search.measured import Suite
from trivium.agents.search.recipe import Search
from trivium.agents.search.report import as_json, markdown, provenance, show
from trivium.agents.search.serve import answer, measure
from trivium.agents.search.train import check
from trivium.agents.search.train import train as run_recipe
from trivium.errors import InputError
from trivium.loops.run import Run, read_json, write_text
from trivium.policy import Renderer
from trivium.trace import Sampling, Store
from trivium.viewer import Live, learning_curve, learning_curves, screen, side_by_side, summary_table

Question = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="QUESTION")]
Runs = Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]
RunFolder = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]


def train(recipe: tyro.conf.OmitArgPrefixes[Search], dry_run: bool = False) -> None:
    """Train a search agent. Stopped or killed, the same command goes on where it was.

    Args:
        recipe: what the run is
        dry_run: print what the run will take (memory, tokens, time on this machine), and train nothing; vectors of a --corpus
            are made, which the run would make first
    """
    check(recipe)
    console = screen()
    if dry_run:
        console.print(estimate(recipe, Live), soft_wrap=True)
        return
    run_recipe(recipe, Live)
    _report(Run.open(recipe.out), console)


def eval(  # noqa: A001  (the verb's name)
    run: RunFolder,
    corpus: str = "",
    tasks: int = 256,
    split: str = "test",
    greedy: bool = False,
    seed: int = 1,
    rollouts: int = 1,
    no_prune: bool = False,
) -> None:
    """Measure a trained run on held-out questions, by default those of its own recipe.

    Args:
        run: the run's folder
        corpus: another folder in the BEIR layout to measure on
        tasks: how many questions
        split: which questions of --corpus
        greedy: take the most likely token instead of sampling
        seed: of the sampling
        rollouts: attempt each question so often, and say what their fused rankings are worth beside one of them
        no_prune: attempt all again with pruning disabled, and say what it was worth
    """
    check_counts(tasks=(tasks, 1), rollouts=(rollouts, 1))
    _check_split(split, corpus)
    if greedy and seed != 1:
        raise InputError("--seed would change nothing: --greedy takes the most likely token")
    sampling = Sampling(temperature=0.0 if greedy else 1.0)
    with Live() as watch:
        lines = measure(run, corpus, tasks, split, sampling, seed, rollouts, no_prune, watch)
    screen().print(lines)


def compare(
    compare: Runs,
    tasks: int = 0,
    corpus: str = "",
    split: str = "test",
    hops: int = 0,
    rollouts: int = 1,
    no_prune: bool = False,
    workers: int = 2,
    json: str = "",
    out: str = "",
    plot: str = "",
) -> None:
    """Make a claim: runs of one recipe (independent seeds) pooled and each alone, base, warm-up and RL, sampled and greedy,
    beside plain search and the perfect script. Runs of another recipe are paired with the first recipe's, seed by seed.

    What is attempted is kept in RUN/compare.db and never attempted again; the same command goes on where it was stopped.

    Args:
        compare: the runs' folders
        tasks: how many held-out questions; default: 512 of generated worlds, all of a real set
        corpus: another folder in the BEIR layout to measure on
        split: which questions of --corpus: test, train, or both as train+test
        hops: only questions of so many hops
        rollouts: also fuse the rankings of so many sampled rollouts of RL
        no_prune: also measure RL with pruning disabled
        workers: equal processes of one thread each
        json: write all numbers with per-task scores to this file
        out: write the tables to this file as Markdown
        plot: draw how the runs trained, side by side, in this PNG
    """
    if not compare:
        raise InputError("there is nothing to compare: name the folder of a run, or of several")
    check_counts(tasks=(tasks, 0), hops=(hops, 0), rollouts=(rollouts, 1), workers=(workers, 1))
    _check_split(split, corpus)
    _check_files(json, out, plot)
    curves = histories(compare)  # first, for a torn one is known at once
    made = provenance(compare)  # before hours of measuring, should it not be known
    numbers = claim(compare, Suite(tasks, corpus, split, hops), rollouts, no_prune, workers, Live)
    numbers = {**made, "corpus": corpus, "split": split, "hops": hops, **numbers}
    show(numbers, screen())
    if json:
        write_text(Path(json), as_json(numbers))
    if out:
        write_text(Path(out), markdown(numbers))
    if plot:
        learning_curves(curves, plot)


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
    for given, what in ((question, "question is empty: say what to find"), (corpus, "--corpus is empty: name your documents")):
        if not given.strip():
            raise InputError(f"the {what}")
    console = screen()
    for part in answer(run, question, corpus, not sample and rollouts == 1, rollouts):
        console.print(part, soft_wrap=True)


def check_counts(**counts: tuple[int, int]) -> None:
    """InputError for a number below its least."""
    for name, (given, least) in counts.items():
        if given < least:
            raise InputError(f"--{name} must be at least {least}, not {given}")


def _check_split(split: str, corpus: str) -> None:
    """InputError for a split of nothing: a run's own held-out questions are its `test`."""
    if split != "test" and not corpus:
        raise InputError(f"--split {split} is of a --corpus: name its folder")


def _check_files(*files: str) -> None:
    """InputError for what cannot be written, before hours are spent on what it shall hold."""
    for file in filter(None, files):
        if not Path(file).absolute().parent.is_dir():
            raise InputError(f"{file} cannot be written: its folder does not exist")
        if Path(file).is_dir():
            raise InputError(f"{file} cannot be written: it is a folder")


def _report(run: Run, console: Console) -> None:
    """What a person sees when training has ended: three episodes side by side, the table, and where things are."""
    summary = read_json(run.folder / "summary.json")
    store = Store(run.folder / "episodes.db")
    task = _telling(store)
    columns = [(name, next(store.select(prefix=f"eval/{name}/{task}/"), None)) for name in ("base", "sft", "rl")]
    shown = [(name, episode) for name, episode in columns if episode]
    scores = {episode.id: store.first_scores(episode.id) for _, episode in shown}
    console.print(side_by_side(shown, console.width, Renderer.load(run.model()).decode, scores))
    console.print(summary_table(summary))
    learning_curve(run.events(), summary, run.folder / "curve.png")
    for name, place in (("table", "summary.json"), ("curve", "curve.png")):
        console.print(f"{name}: {run.folder / place}", soft_wrap=True)
    console.print(f"read on: trivium show {run.folder}", soft_wrap=True)


def _telling(store: Store) -> str:
    """The task whose held-out episode shows most: one that pruned if any did, of many hops."""
    return min(store.select(prefix="eval/rl/"), key=lambda e: (-len(e.ops), -e.task.truth.get("hops", 1), e.id)).task.id
