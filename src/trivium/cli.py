"""One command; a verb per thing a person does. A recipe's own fields are its options, and there are no others."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

os.environ.setdefault("OMP_NUM_THREADS", "1")  # equal single-thread workers beat threads here (fleet/local.py)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tyro

from trivium.errors import InputError, TriviumError
from trivium.loops.run import Run, read_json
from trivium.policy import Renderer
from trivium.trace import Store
from trivium.viewer import episode_panel, screen, summary_table
from trivium.viewer.table import POLICIES

HELP = {"-h", "--help", "help"}
AGENTS_VERBS = ("train", "eval")  # the word after them names an agent
USAGE = """\
usage: trivium VERB ...

  train search [options]           train a search agent: warm-up, then RL (--help lists the recipe's fields)
  eval search RUN [options]        measure a run on held-out questions, again or on other ones
  eval --compare RUN RUN [options] what several runs together say, beside plain search
  show RUN [options]               read a run's episodes and its table, or the episodes of a store
  export RUN FOLDER                its weights as a Hugging Face folder that transformers and vLLM load
  ask RUN "question" --corpus DOCS the trained agent on your own documents

`trivium VERB --help` says more."""

Folder = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")]
RunFolder = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]


def main() -> None:
    """The entry point: a person's mistake is one line on stderr and status 2, never a traceback."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no arrow is no reason to stop
    try:
        _dispatch(sys.argv[1:])
    except BrokenPipeError:  # who read us has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (TriviumError, OSError) as error:
        print(f"trivium: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        goes_on = "; the same command goes on from the last checkpoint" if sys.argv[1:2] == ["train"] else ""
        print(f"trivium: stopped{goes_on}", file=sys.stderr)
        sys.exit(130)


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in HELP:
        print(USAGE)
        return
    if words[0] == "--version":
        print(version("trivium"))
        return
    if words[0] in AGENTS_VERBS and words[1:2] and words[1] in HELP:
        words = [words[0], "search", *words[1:]]  # the only agent there is
    if words[0] in ("train", "eval", "ask"):
        from trivium.agents.search import command  # brings torch, which `trivium show` can do without

        verb, taken = getattr(command, words[0]), 1
        if words[0] == "eval" and {"--compare"} & {word.partition("=")[0] for word in words}:
            verb, taken = command.compare, 2 if words[1] == "search" else 1
        elif words[0] in AGENTS_VERBS:
            taken = 2
            if words[1:2] != ["search"]:
                raise InputError(f"`trivium {words[0]}` needs the name of an agent; there is: search")
    else:
        verbs = {"show": show, "export": export}
        if words[0] not in verbs:
            raise InputError(f"there is no verb {words[0]!r}; `trivium --help` lists them")
        verb, taken = verbs[words[0]], 1
    tyro.cli(verb, args=words[taken:], prog=" ".join(["trivium", *words[:taken]]), config=(tyro.conf.FlagCreatePairsOff,))


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
    store = Store(file)
    prefix = episode or (f"eval/{policy}/" if policy else _furthest(store) if opened else "")
    found = list(store.select(prefix=prefix, limit=count))
    if not found:
        raise InputError(f"{run} holds no episode whose id begins with {prefix!r}; {_stages(store)}")
    console, finished = screen(), opened is not None and opened.finished
    if finished and not episode:
        console.print(summary_table(read_json(opened.folder / "summary.json")))
        console.print(f"curve: {opened.folder}/curve.png", soft_wrap=True)
    decode = Renderer.load(opened.model()).decode if finished else None
    for each in found:
        console.print(episode_panel(each, decode, store.first_scores(each.id)))


def _furthest(store: Store) -> str:
    """The episodes of the last stage that has some."""
    stages = ("eval/rl/", "rl/", "eval/sft/", "teacher/", "eval/base/")
    return next((stage for stage in stages if _any(store, stage)), stages[0])


def _stages(store: Store) -> str:
    """What there is to be shown."""
    stages = [stage for stage in ("teacher/", "rl/") if _any(store, stage)]
    policies = [policy for policy in POLICIES if _any(store, f"eval/{policy}/")]
    told = [f"--{option} {', '.join(found)}" for option, found in (("episode", stages), ("policy", policies)) if found]
    if told:
        return f"there are {' and '.join(told)}"
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
