"""What a person does with any agent: train it, measure it, compare runs, read them, export them. Each is a verb of the
command line. The agent's own fields are its options: tyro reads them off the annotation, which is a class known only when
the verb is made, and no type checker follows that."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from trivium.errors import InputError
from trivium.loops.run import Run, write_text
from trivium.recipe.base import Recipe
from trivium.recipe.find import opened
from trivium.recipe.outside import Outside
from trivium.recipe.show import RunFolder, report
from trivium.viewer import Live, learning_curves, screen

Runs = Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]
Folder = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")]


def train_verb(cls: type[Recipe]) -> Callable[..., None]:
    """`trivium train` of an agent: its class's fields are the options."""

    def train(recipe: tyro.conf.OmitArgPrefixes[cls], dry_run: bool = False) -> None:  # ty: ignore[invalid-type-form]
        """Train an agent. Stopped or killed, the same command goes on where it was.

        Args:
            dry_run: print what the run will take (memory, tokens, time on this machine), and train nothing; what the run
                would make first and keep, such as vectors, is made
        """
        from trivium.recipe import estimate
        from trivium.recipe.line import train as run_to_its_end

        recipe.check()
        if dry_run:
            screen().print(estimate.dry_run(recipe, Live), soft_wrap=True)
            return
        if not Path(recipe.out, "recipe.json").exists():
            with Live() as watch:
                parts = estimate.parts_of(recipe, watch)
                watch.note(estimate.announcement(parts))
                watch.note(f"about {estimate.estimate(parts).minutes:.0f} minutes on this machine, as busy as it is now")
        report(run_to_its_end(recipe, Live), screen())

    train.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{inspect.cleandoc(train.__doc__ or '')}"
    return train


def eval_verb(cls: type[Recipe]) -> Callable[..., None]:
    """`trivium eval RUN` of a run of an agent: its suite's fields are the options."""

    def eval(  # noqa: A001  (the verb's name)
        run: RunFolder,
        suite: tyro.conf.OmitArgPrefixes[cls.suite],  # ty: ignore[invalid-type-form]
        greedy: bool = False,
        seed: int = 1,
    ) -> None:
        """Measure a trained run on held-out tasks, by default those of its own recipe.

        Args:
            run: the run's folder
            suite: what it is measured on
            greedy: take the most likely token instead of sampling
            seed: of the sampling
        """
        from trivium.recipe.evaluate import measure

        suite.check()
        if greedy and seed != 1:
            raise InputError("--seed would change nothing: --greedy takes the most likely token")
        with Live() as watch:
            blocks = list(measure(run, suite, greedy, seed, watch))
        screen().print("\n\n".join(blocks))

    return eval


def outside_verb(cls: type[Recipe]) -> Callable[..., None]:
    """`trivium eval AGENT --policy URL#MODEL`, or `--model FOLDER`: a model that no run trained, in the agent's harness."""

    def eval(  # noqa: A001  (the verb's name)
        outside: tyro.conf.OmitArgPrefixes[Outside],
        suite: tyro.conf.OmitArgPrefixes[cls.suite],  # ty: ignore[invalid-type-form]
        greedy: bool = False,
        seed: int = 1,
    ) -> None:
        """Measure a model that no run trained, in the agent's harness, on the agent's held-out tasks.

        Args:
            outside: which model speaks, and what it may cost
            suite: what it is measured on
            greedy: take the most likely token instead of sampling
            seed: of the sampling of a --model; a server draws as it likes
        """
        from trivium.recipe.evaluate import measure_outside

        outside.check()
        suite.check()
        if seed != 1 and (greedy or outside.policy):
            raise InputError("--seed would change nothing: it is for a --model that samples")
        with Live() as watch:
            blocks = list(measure_outside(cls, outside, suite, greedy, seed, watch))
        screen().print("\n\n".join(blocks), soft_wrap=True)

    return eval


def compare_verb(cls: type[Recipe]) -> Callable[..., None]:
    """`trivium eval --compare RUN RUN` of runs of an agent."""

    def compare(
        compare: Runs,
        suite: tyro.conf.OmitArgPrefixes[cls.suite],  # ty: ignore[invalid-type-form]
        workers: int = 2,
        json: str = "",
        out: str = "",
        plot: str = "",
    ) -> None:
        """Make a claim: runs of one recipe (independent seeds) pooled and each alone; base, warm-up and RL, sampled and greedy,
        and what the agent has to be compared with. Runs of another recipe are paired with the first recipe's, seed by seed.

        What is attempted is kept in RUN/compare.db and never attempted again; the same command goes on where it was stopped.

        Args:
            compare: the runs' folders
            suite: what they are measured on
            workers: equal processes of one thread each
            json: write all numbers to this file
            out: write the tables to this file as Markdown
            plot: draw how the runs trained, side by side, in this PNG
        """
        from trivium.recipe import report as page
        from trivium.recipe.compare import compare as claim
        from trivium.recipe.compare import histories

        if not compare:
            raise InputError("there is nothing to compare: name the folder of a run, or of several")
        suite.check()
        check_counts(workers=(workers, 1))
        check_files(json, out, plot)
        curves = histories(compare, suite)  # first, for a torn one is known at once
        head = page.provenance(compare)  # before hours of measuring, should it not be known
        numbers = {**head, "suite": str(suite), **claim(compare, suite, workers, Live)}
        more = opened(compare[0])[1].comparison().tables
        if json:
            write_text(Path(json), page.as_json(numbers))
        if out:
            write_text(Path(out), page.markdown(numbers, more))
        if plot:
            learning_curves(curves, plot, cls.panels)
        page.show(numbers, more, screen())

    return compare


def check_counts(**counts: tuple[int, int]) -> None:
    """InputError for a number below its least."""
    for name, (number, least) in counts.items():
        if number < least:
            raise InputError(f"--{name} must be at least {least}, not {number}")


def check_files(*files: str) -> None:
    """InputError for what cannot be written, before hours are spent on what it shall hold."""
    for file in filter(None, files):
        if not Path(file).absolute().parent.is_dir():
            raise InputError(f"{file} cannot be written: its folder does not exist")
        if Path(file).is_dir():
            raise InputError(f"{file} cannot be written: it is a folder")


def export(run: RunFolder, folder: Folder) -> None:
    """Write a run's weights as a Hugging Face folder that transformers and vLLM load.

    Args:
        run: the run's folder
        folder: where to write; new or empty
    """
    screen().print(f"{Run.open(run).export(folder)} holds the weights of {run}", soft_wrap=True)
