"""What a person does with any agent: train it, measure it, compare runs, read them, export them. Each is a verb of the
command line. The agent's own fields are its options: tyro reads them off the annotation, which is a class known only when
the verb is made, and no type checker follows that."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from trivium.errors import InputError
from trivium.loops.run import Run, read_json, write_text
from trivium.policy import Renderer
from trivium.recipe.base import Recipe
from trivium.recipe.find import class_of
from trivium.trace import Store
from trivium.viewer import Live, episode_panel, learning_curve, learning_curves, screen, side_by_side, summary_table
from trivium.viewer.table import POLICIES

Runs = Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]
RunFolder = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
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
                watch.note(estimate.announcement(recipe))
                watch.note(f"about {estimate.minutes(recipe, watch):.0f} minutes on this machine, as busy as it is now")
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
        _check_files(json, out, plot)
        curves = histories(compare, suite)  # first, for a torn one is known at once
        head = page.provenance(compare)  # before hours of measuring, should it not be known
        numbers = {**head, "suite": str(suite), **claim(compare, suite, workers, Live)}
        more = cls.of(Run.open(compare[0]).recipe(), compare[0]).comparison().tables
        page.show(numbers, more, screen())
        if json:
            write_text(Path(json), page.as_json(numbers))
        if out:
            write_text(Path(out), page.markdown(numbers, more))
        if plot:
            learning_curves(curves, plot, cls.panels)

    return compare


def check_counts(**counts: tuple[int, int]) -> None:
    """InputError for a number below its least."""
    for name, (number, least) in counts.items():
        if number < least:
            raise InputError(f"--{name} must be at least {least}, not {number}")


def _check_files(*files: str) -> None:
    """InputError for what cannot be written, before hours are spent on what it shall hold."""
    for file in filter(None, files):
        if not Path(file).absolute().parent.is_dir():
            raise InputError(f"{file} cannot be written: its folder does not exist")
        if Path(file).is_dir():
            raise InputError(f"{file} cannot be written: it is a folder")


def report(run: Run, console: Console) -> None:
    """What a person sees when training has ended: three episodes side by side, the table, and where things are."""
    summary, cls = read_json(run.folder / "summary.json"), class_of(run)
    store = Store(run.folder / "episodes.db", readonly=True)
    task = _telling(store)
    columns = [(name, next(store.select(prefix=f"eval/{name}/{task}/"), None)) for name in ("base", "sft", "rl")]
    shown = [(name, episode) for name, episode in columns if episode]
    scores = {episode.id: store.first_scores(episode.id) for _, episode in shown}
    console.print(side_by_side(shown, console.width, Renderer.load(run.model()).decode, scores, cls.labels))
    console.print(summary_table(summary, cls.panels.table))
    learning_curve(run.events(), summary, run.folder / "curve.png", cls.panels)
    for name, place in (("table", "summary.json"), ("curve", "curve.png")):
        console.print(f"{name}: {run.folder / place}", soft_wrap=True)
    console.print(f"read on: trivium show {run.folder}", soft_wrap=True)


def _telling(store: Store) -> str:
    """The task whose held-out episode shows most: one that edited its context if any did, of many calls."""
    return min(store.select(prefix="eval/rl/"), key=lambda e: (-len(e.ops), -len(e.agent.calls), e.id)).task.id


def show(run: RunFolder, episode: str = "", count: int = 3, policy: str = "") -> None:
    """Read a run, finished or not: its table, its curve's place, and episodes. Or episodes alone, of a store of your own.

    Args:
        run: the run's folder, or the file of a store (`Store("episodes.db")`)
        episode: ids that begin with this, such as eval/rl/ or rl/12/ or teacher/, instead of held-out episodes and the table
        count: how many episodes
        policy: whose held-out episodes: base, sft, sft_greedy, rl, rl_greedy, expert; default: rl, or how far the run is
    """
    if count < 1:
        raise InputError(f"--count must be at least 1, not {count}")
    if episode and policy:
        raise InputError("--episode and --policy name the episodes in two ways: give one of them")
    opened = None if Path(run).is_file() else Run.open(run)
    file = opened.folder / "episodes.db" if opened else Path(run)
    if not file.is_file():
        raise InputError(f"{run} holds no episodes yet")
    if policy and not opened:
        raise InputError(f"{run} is a store and no run: --episode names its episodes, by how their ids begin")
    store, cls = Store(file, readonly=True), class_of(opened) if opened else Recipe
    prefix = episode or (f"eval/{policy}/" if policy else _furthest(store) if opened else "")
    episodes = list(store.select(prefix=prefix, limit=count))
    if not episodes:
        raise InputError(f"{run} holds no episode whose id begins with {prefix!r}; {_stages(store)}")
    console, finished = screen(), opened is not None and opened.finished
    if opened and finished and not episode:
        console.print(summary_table(read_json(opened.folder / "summary.json"), cls.panels.table))
        console.print(f"curve: {opened.folder}/curve.png", soft_wrap=True)
    decode = Renderer.load(opened.model()).decode if opened and finished else None
    for each in episodes:
        console.print(episode_panel(each, decode, store.first_scores(each.id), labels=cls.labels))


def _furthest(store: Store) -> str:
    """The episodes of the last stage that has some."""
    stages = ("eval/rl/", "rl/", "eval/sft/", "teacher/", "eval/base/")
    return next((stage for stage in stages if _any(store, stage)), stages[0])


def _stages(store: Store) -> str:
    """What there is to be shown."""
    stages = [stage for stage in ("teacher/", "rl/") if _any(store, stage)]
    policies = [policy for policy in POLICIES if _any(store, f"eval/{policy}/")]
    options = [f"--{option} {', '.join(names)}" for option, names in (("episode", stages), ("policy", policies)) if names]
    if options:
        return f"there are {' and '.join(options)}"
    return next((f"the first is called {each.id}" for each in store.select(limit=1)), "there is none yet")


def _any(store: Store, prefix: str) -> bool:
    return bool(list(store.select(prefix=prefix, limit=1)))


def export(run: RunFolder, folder: Folder) -> None:
    """Write a run's weights as a Hugging Face folder that transformers and vLLM load.

    Args:
        run: the run's folder
        folder: where to write; new or empty
    """
    screen().print(f"{Run.open(run).export(folder)} holds the weights of {run}", soft_wrap=True)
