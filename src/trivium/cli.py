"""One command; a verb per thing a person does. A recipe's own fields are its options, and there are no others."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # equal single-thread workers beat threads here (fleet/local.py)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tyro
from rich.console import Console

from trivium.errors import InputError, TriviumError
from trivium.loops.run import Run, read_json
from trivium.policy import Renderer
from trivium.trace import Store
from trivium.viewer import episode_panel, summary_table

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
    if words[0] in ("train", "eval", "ask"):
        from trivium.agents.search import command  # brings torch, which `trivium show` can do without

        verb, taken = getattr(command, words[0]), 1
        if words[0] != "ask":
            taken = 2
            if words[1:2] != ["search"]:
                raise InputError(f"`trivium {words[0]}` needs the name of an agent; there is: search")
    else:
        verbs = {"show": show, "export": export}
        if words[0] not in verbs:
            raise InputError(f"there is no verb {words[0]!r}; `trivium --help` lists them")
        verb, taken = verbs[words[0]], 1
    tyro.cli(verb, args=words[taken:], prog=" ".join(["trivium", *words[:taken]]))


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
    decode = Renderer.load(opened.model()).decode
    for each in found:
        console.print(episode_panel(each, decode, {s.name: s.value for s in store.scores(each.id)}))


def export(run: Positional[str], folder: Positional[str]) -> None:
    """Write a run's weights as a Hugging Face folder that transformers and vLLM load.

    Args:
        run: the run's folder
        folder: where to write; new or empty
    """
    Console().print(f"{Run.open(run).export(folder)} holds the weights of {run}")
