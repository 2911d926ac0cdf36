"""One command; a verb per thing a person does. A recipe's own fields are its options, and there are no others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")  # equal single-thread workers beat threads here (fleet/local.py)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tyro
from rich.console import Console

from trivium.agents.search.recipe import Search
from trivium.errors import InputError, TriviumError
from trivium.loops.run import Run, read_json
from trivium.trace import Store
from trivium.viewer import Live, episode_panel, learning_curve, side_by_side, summary_table

USAGE = """\
usage: trivium VERB ...

  train search [options]           train a search agent: warm-up, then RL (--help lists the recipe's fields)
  eval search RUN [options]        measure a run on held-out questions, again or on other ones
  show RUN [options]               read a run's episodes and its table
  export RUN FOLDER                its weights as a Hugging Face folder that transformers and vLLM load
  ask RUN "question" --corpus DOCS the trained agent on your own documents

`trivium VERB --help` says more."""

Positional = tyro.conf.Positional


def main() -> None:
    """The entry point: a person's mistake is one line on stderr and status 2, never a traceback."""
    try:
        _dispatch(sys.argv[1:])
    except TriviumError as error:
        print(f"trivium: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("trivium: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return
    verbs: dict[str, Callable] = {"show": show, "export": export, "ask": ask}
    if words[0] in ("train", "eval"):
        return _of_agent(words)
    if words[0] not in verbs:
        raise InputError(f"there is no verb {words[0]!r}; `trivium --help` lists them")
    tyro.cli(verbs[words[0]], args=words[1:], prog=f"trivium {words[0]}")


def _of_agent(words: list[str]) -> None:
    """`trivium train AGENT ...` and `trivium eval AGENT ...`."""
    agents = {("train", "search"): train_search, ("eval", "search"): eval_search}
    if len(words) < 2 or (words[0], words[1]) not in agents:
        known = ", ".join(agent for verb, agent in agents if verb == words[0])
        raise InputError(f"`trivium {words[0]}` needs the name of an agent: {known}")
    tyro.cli(agents[words[0], words[1]], args=words[2:], prog=f"trivium {words[0]} {words[1]}")


def train_search(recipe: tyro.conf.OmitArgPrefixes[Search], dry_run: bool = False) -> None:
    """Train a search agent. Stopped or killed, the same command goes on where it was.

    Args:
        recipe: what the run is
        dry_run: print what the run will take (memory, tokens, time on this machine), and do nothing
    """
    from trivium.agents.search.estimate import estimate
    from trivium.agents.search.train import check, train

    check(recipe)
    console = Console()
    if dry_run:
        console.print(estimate(recipe))
        return
    train(recipe, Live)
    _report(Run.open(recipe.out), recipe, console)


def eval_search(
    run: Positional[str],
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
    from trivium.agents.search.serve import measure

    Console().print(measure(run, corpus, tasks, split, greedy, seed))


def show(run: Positional[str], episode: str = "", count: int = 3, policy: str = "rl") -> None:
    """Read a run: its table, its curve's place, and episodes.

    Args:
        run: the run's folder
        episode: ids that begin with this (such as eval/rl/ or rl/12/) instead of a comparison of the policies
        count: how many
        policy: whose held-out episodes: base, sft, sft_greedy, rl, rl_greedy
    """
    opened = Run.open(run)
    console = Console()
    if (opened.folder / "summary.json").exists() and not episode:
        console.print(summary_table(read_json(opened.folder / "summary.json")))
    store = Store(opened.folder / "episodes.db")
    found = list(store.select(prefix=episode or f"eval/{policy}/", limit=count))
    if not found:
        raise InputError(f"{run} holds no episode whose id begins with {episode or f'eval/{policy}/'!r}")
    for each in found:
        console.print(episode_panel(each, scores={s.name: s.value for s in store.scores(each.id)}))


def export(run: Positional[str], folder: Positional[str]) -> None:
    """Write a run's weights as a Hugging Face folder that transformers and vLLM load.

    Args:
        run: the run's folder
        folder: where to write; new or empty
    """
    from trivium.agents.search.serve import exported

    Console().print(f"{exported(run, folder)} holds the weights of {run}")


def ask(run: Positional[str], question: Positional[str], corpus: str, greedy: bool = True) -> None:
    """Ask a trained agent about your documents: it searches, reads and prunes in the harness it was trained in.

    Args:
        run: the run's folder
        question: what to find
        corpus: a folder of text and Markdown, a JSONL file, or a folder in the BEIR layout
        greedy: take the most likely token instead of sampling
    """
    from trivium.agents.search.serve import answer

    console = Console()
    for part in answer(run, question, corpus, greedy):
        console.print(part, highlight=False, markup=False)


def _report(run: Run, recipe: Search, console: Console) -> None:
    """What a person sees when training has ended: three episodes side by side, the table, and where things are."""
    summary = read_json(run.folder / "summary.json")
    store = Store(run.folder / "episodes.db")
    for task in _telling(store):
        columns = [(name, next(store.select(prefix=f"eval/{name}/{task}/"), None)) for name in ("base", "sft", "rl")]
        console.print(side_by_side([(name, e) for name, e in columns if e], console.width))
    console.print(summary_table(summary))
    learning_curve(run.events(), summary, run.folder / "curve.png")
    console.print(f"table: {run.folder}/summary.json   curve: {run.folder}/curve.png   read on: trivium show {run.folder}")


def _telling(store: Store) -> list[str]:
    """A task whose held-out episode shows most: of several hops, and pruned where any was."""
    episodes = list(store.select(prefix="eval/rl/"))
    ranked = sorted(episodes, key=lambda e: (-len(e.ops), -e.task.truth.get("hops", 1), e.id))
    return [ranked[0].task.id] if ranked else []
