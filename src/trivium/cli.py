"""One command; a verb per thing a person does. An agent's own fields are its options, and there are no others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")  # equal single-thread workers beat threads here (fleet/local.py)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tyro

from trivium.errors import InputError, TriviumError
from trivium.loops.run import Run

if TYPE_CHECKING:
    from trivium.recipe import Recipe

HELP = {"-h", "--help", "help"}
OUTSIDE = {"--policy", "--model"}
"""Options that name a model which no run trained."""
_SIGPIPE = 141  # what a shell says of a command whose reader left
USAGE = """\
usage: trivium VERB ...

  train AGENT [options]            train an agent: warm-up, then RL (--help lists its own fields);
                                   AGENT is search, coder, swarm, or a Python file with your own: my_agent.py
  eval RUN [options]               measure a run on held-out tasks, again or on other ones
  eval --compare RUN RUN [options] what several runs together say
  eval AGENT --policy URL#MODEL    any model's scores in the agent's harness, or of --model FOLDER
  show RUN [options]               read a run's episodes and its table, or the episodes of a store
  view RUN                         the same in a browser: curves, episodes token by token, policies side by side
  export RUN FOLDER                its weights as a Hugging Face folder that transformers and vLLM load
  tasks log QUESTIONS [options]    your documents and a log of questions, made ready for train
  tasks git REPO [options]         a repository's commits, made into tasks that its tests judge
  tasks features FOLDER [options]  features taken out of a package with tests, to be put back
  tasks check FILE                 such tasks proven again, in sandboxes
  serve RUN [options]              the model of a run behind OpenAI's and Anthropic's APIs; every call becomes a trace
  keys NAME [options]              make an API key for serve
  live RUN [options]               learn from what people do with a served run, and deploy what is better
  rollback RUN [options]           take back the candidate that is tried out, or else the version that is served
  sandbox serve [options]          lend sandboxes to other processes and machines
  ask RUN "question" --corpus DOCS the trained search agent on your own documents
  fix RUN FOLDER "request"         the trained coder on your own project: it ends in a diff, applied only when you say so
  ask --policy URL#MODEL "question" --corpus DOCS
                                   any model in its harness, or one in --model FOLDER

`trivium VERB --help` says more."""


def main() -> None:
    """The entry point: a person's mistake is one line on stderr and status 2, never a traceback."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no arrow is no reason to stop
    try:
        _dispatch(sys.argv[1:])
    except BrokenPipeError:  # who read us has read enough; a run is not finished by that
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_SIGPIPE if sys.argv[1:2] == ["train"] else 0)
    except (TriviumError, OSError) as error:
        print(f"trivium: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        goes_on = "; the same command goes on from the last checkpoint" if sys.argv[1:2] in (["train"], ["live"]) else ""
        print(f"trivium: stopped{goes_on}", file=sys.stderr)
        sys.exit(130)


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in HELP:
        return print(USAGE)
    if words[0] == "--version":
        return print(version("trivium"))
    verbs = {"train": _train, "eval": _eval, "ask": _ask, "show": _show, "view": _view, "export": _export, "tasks": _tasks}
    verbs |= {"serve": _serve, "keys": _keys, "sandbox": _sandbox, "fix": _fix, "live": _live, "rollback": _rollback}
    if words[0] not in verbs:
        raise InputError(f"there is no verb {words[0]!r}; `trivium --help` lists them")
    verbs[words[0]](words)


def _run(verb: Callable[..., None], words: list[str], taken: int) -> None:
    """`verb` with the words behind the first `taken` as its options."""
    tyro.cli(verb, args=words[taken:], prog=" ".join(["trivium", *words[:taken]]), config=(tyro.conf.FlagCreatePairsOff,))


def _train(words: list[str]) -> None:
    from trivium.recipe.find import find
    from trivium.recipe.verbs import train_verb

    if not words[1:] or words[1] in HELP:  # the fields of our own show what there may be
        first = "search"
        if not words[1:]:
            raise InputError(f"`trivium train` needs the name of an agent, such as {first}, or a Python file with your own")
        words = [words[0], first, *words[1:]]
    _run(train_verb(find(words[1])), words, 2)


def _eval(words: list[str]) -> None:
    from trivium.recipe.verbs import compare_verb, eval_verb

    if OUTSIDE & _options(words):
        return _eval_outside(words)
    cls, named = _agent(words[1:])
    _run((compare_verb if "--compare" in _options(words) else eval_verb)(cls), words, 2 if named else 1)


def _eval_outside(words: list[str]) -> None:
    from trivium.recipe.find import find
    from trivium.recipe.verbs import outside_verb

    if words[1].startswith("-"):
        raise InputError("name the agent in whose harness the model is to live: trivium eval search --policy URL#MODEL")
    _run(outside_verb(find(words[1])), words, 2)


def _options(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def _agent(words: list[str]) -> tuple[type[Recipe], bool]:
    """The class whose runs are spoken of: of the agent named first, or of the first run; and whether it was named. InputError
    where neither says it."""
    from trivium.recipe.find import class_of, find, shipped

    known = shipped()
    named = bool(words) and (words[0] in known or words[0].partition(":")[0].endswith(".py"))
    run = _run_of(words[named:])
    if named:
        cls = find(words[0])
        if run and Path(run, "recipe.json").is_file() and (its := class_of(Run.open(run))) is not cls:
            raise InputError(f"{run} is a run of {its.__name__}, and not of {cls.__name__}: leave the agent's name out")
        return cls, True
    if run is None or HELP & set(words):
        return known["search"], False
    return class_of(Run.open(run)), False


def _run_of(words: list[str]) -> str | None:
    """The first word that is a run's folder; else the first that is no option, which an error can name."""
    plain = [word for word in words if not word.startswith("-")]
    return next((word for word in plain if Path(word, "recipe.json").is_file()), plain[0] if plain else None)


def _ask(words: list[str]) -> None:
    from trivium.agents.search.verbs import ask, ask_outside  # brings torch

    _run(ask_outside if OUTSIDE & _options(words) else ask, words, 1)


def _serve(words: list[str]) -> None:
    from trivium.recipe.serving import serve

    _run(serve, words, 1)


def _sandbox(words: list[str]) -> None:
    from trivium.sandbox.verbs import serve

    if words[1:2] != ["serve"]:
        raise InputError("`trivium sandbox` lends sandboxes over HTTP: trivium sandbox serve --images FOLDER --backend NAME")
    _run(serve, words, 2)


def _keys(words: list[str]) -> None:
    from trivium.recipe.serving import new_key

    _run(new_key, words, 1)


def _live(words: list[str]) -> None:
    from trivium.recipe.live import live  # brings torch

    _run(live, words, 1)


def _rollback(words: list[str]) -> None:
    from trivium.recipe.rollback import rollback

    _run(rollback, words, 1)


def _fix(words: list[str]) -> None:
    from trivium.agents.coder.verbs import fix  # brings torch

    _run(fix, words, 1)


def _show(words: list[str]) -> None:
    from trivium.recipe.show import show

    _run(show, words, 1)


def _view(words: list[str]) -> None:
    from trivium.recipe.view import view

    _run(view, words, 1)


def _export(words: list[str]) -> None:
    from trivium.recipe.verbs import export

    _run(export, words, 1)


def _tasks(words: list[str]) -> None:
    kind = words[1] if len(words) > 1 else ""
    if kind in ("git", "features", "check"):
        from trivium.recipe import mining

        return _run(getattr(mining, kind), words, 2)
    from trivium.recipe.tasks import log

    if kind != "log" and kind not in HELP:
        raise InputError("`trivium tasks` makes them of a log of questions: trivium tasks log QUESTIONS --documents DOCS")
    _run(log, ["tasks", "log", *words[1:]] if HELP & set(words[1:2]) else words, 2)
