"""What a person does with the coder alone: have it fix something."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Annotated

import tyro
from rich.text import Text

from trivium.agents.coder.desk import Backend, Desks, open_provider
from trivium.agents.coder.fix import Copy, diff, read_folder
from trivium.agents.coder.fix import apply as write_back
from trivium.agents.coder.recipe import Coder
from trivium.errors import InputError
from trivium.harness import CallEvent, Event, Harness, refuse_silence, silence_error
from trivium.policy import Policy
from trivium.recipe.find import opened
from trivium.recipe.show import RunFolder
from trivium.trace import Episode, Sampling, Task
from trivium.viewer import screen
from trivium.viewer.episodes import clean, short

Folder = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")]
Request = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="REQUEST")]


def fix(
    run: RunFolder,
    folder: Folder,
    request: Request,
    sandbox: Backend = "ns",
    apply: bool = False,
    sample: bool = False,
) -> None:
    """Have a trained coder change a project: it works on a copy, and ends in a diff. Nothing is changed unless you say so.

    Args:
        run: the run's folder
        folder: the project's folder
        request: what to change, in a sentence
        sandbox: where it works: ns (Linux namespaces), docker, or local-unsafe, which isolates nothing
        apply: write the changes into the folder; else you are asked, where somebody can answer
        sample: draw tokens as in training, instead of taking the most likely one
    """
    if not request.strip():
        raise InputError("the request is empty: say what to change")
    copy, console = read_folder(folder), screen()
    desks = Desks(open_provider(sandbox), files=copy.held)
    episode, after = asyncio.run(_attempt(run, desks, request, sample))
    shown = diff(copy.held, after)
    console.print(Text(_ending(episode, copy), "dim"))
    if not shown:
        return console.print("It changed nothing.")
    print(shown, end="")
    if apply or _agreed():
        console.print(f"applied to {_apply(copy, after)}")
    else:
        console.print("Nothing was applied: the same command with --apply does it.")


def _apply(copy: Copy, after: Mapping[str, bytes]) -> str:
    return ", ".join(write_back(copy, after))


def _agreed() -> bool:
    """Whether somebody who can answer says yes. Who ends the input (Ctrl-D) says no."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    try:
        return input("Apply this? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


async def _attempt(run: str, desks: Desks, request: str, sample: bool) -> tuple[Episode, dict[str, bytes]]:
    """One attempt by the agent of a run. InputError for a run of another agent; else raises as `lived`."""
    from trivium.engine import Engine
    from trivium.recipe.parts import Parts

    folder, recipe = opened(run)
    if not isinstance(recipe, Coder):
        raise InputError(f"{run} is a run of {type(recipe).__name__}, which changes no code")
    parts = Parts(recipe, folder.model())
    harness = recipe.harness_in(desks)
    engine = Engine(folder.model(), renderer=parts.renderer, slots=1, context=harness.window.budget)
    sampling = Sampling(temperature=1.0 if sample else 0.0, max_tokens=harness.window.reply)
    return await lived(harness, engine, desks, request, sampling)


async def lived(
    harness: Harness, policy: Policy, desks: Desks, request: str, sampling: Sampling
) -> tuple[Episode, dict[str, bytes]]:
    """One attempt, told as it goes on, and the files that it left; no sandbox stays behind, however it ends. PlaceError where
    none could be made, or it died; PolicyError where the policy could not speak."""
    try:
        episode = await harness.run(Task("fix", request), policy, sampling=sampling, watch=_tell)
        refuse_silence([episode])
        if not episode.snapshots:
            raise silence_error(episode)
        return episode, await desks.held(episode.snapshots[-1])
    finally:
        await desks.provider.close()


def _tell(event: Event) -> None:
    """A line for each call as it ends."""
    if isinstance(event, CallEvent):
        call = event.call
        given = ", ".join(f"{name}={short(str(value))}" for name, value in call.arguments.items())
        result = call.error or "".join(piece.shown for piece in call.pieces)
        screen().print(Text.assemble((f"{call.name}({clean(given)})", "bold"), "\n    ", (short(clean(result)), "dim")))


def _ending(episode: Episode, copy: Copy) -> str:
    stop = episode.agent.stop
    line = f"{episode.agent.turns} turns, {len(episode.agent.calls)} calls"
    if stop and stop.reason != "finished":
        line += f"; it came to no end of its own: {stop.reason} ({clean(stop.detail)})"
    if copy.skipped:
        line += f"; left where they are: {', '.join(clean(name) for name in copy.skipped[:5])}"
    return line
