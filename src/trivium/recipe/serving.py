"""A run behind an API: its model, and the agent in the harness that it was trained in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trivium.engine import Engine
from trivium.errors import InputError
from trivium.loops.deploy import Deployments
from trivium.nn import Network
from trivium.policy import Renderer
from trivium.recipe.deployed import RunRecord
from trivium.recipe.find import opened
from trivium.recipe.memory import fitting_slots
from trivium.recipe.parts import Parts
from trivium.recipe.show import Book, RunFolder
from trivium.recipe.verbs import check_counts
from trivium.recipe.view import book_app
from trivium.recipe.watcher import embedding
from trivium.serve.options import Options
from trivium.trace import Episode, Store
from trivium.viewer import Live

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from trivium.serve.service import Service

NAME = "agent"
"""What requests call a run's model."""
SLOTS = 32
"""Requests that a model speaks for at once, where memory holds them."""


def serve(
    run: RunFolder, options: Annotated[Options, tyro.conf.arg(name="")], data: str = "", slots: int = 0, context: int = 0
) -> None:
    """Serve a trained run over HTTP: the agent, and its model behind OpenAI's and Anthropic's APIs. docs/serve.md says more.

    Args:
        run: the run's folder
        options: how it is served
        data: what the agent works on: documents to search, or a project's folder to change, as a diff; default: what it
            was trained on, where that is somebody's
        slots: requests that the model speaks for at once; more wait for their turn; 0: as many as memory holds, up to 32
        context: tokens of a conversation at most; 0: as many as the window that it was trained in
    """
    check_counts(slots=(slots, 0), context=(context, 0))
    require()
    from trivium.serve.server import run as serve_on
    from trivium.serve.server import run_stdio

    if options.stdio:  # stdout is the protocol's
        return run_stdio(service_of(run, options, data, slots, context, lambda done, total: None))
    with Live() as watch:
        service = service_of(run, options, data, slots, context, embedding(watch))
    serve_on(service)


def service_of(
    run: str, options: Options, data: str, slots: int, context: int, progress: Callable[[int, int], None]
) -> Service:
    """The service of a run. InputError for one without weights, and for data that its agent cannot work on."""
    from trivium.serve.aside import Aside
    from trivium.serve.following import Deployed
    from trivium.serve.service import Service

    folder, recipe = opened(run)
    parts = Parts(recipe, folder.model())
    harness = recipe.harness_at(data, progress)
    tokens = context or parts.window.budget

    def speak(model: Path, version: int) -> Any:  # a Policy whose version is its engine's to change
        return Aside(_engine(model, version, parts.renderer, slots, tokens))

    record = RunRecord(Deployments(folder.folder), folder.model(), speak)
    if options.follow and record.deployments.path.exists():
        raise InputError(f"{run} has a deployment record, which says what serves: leave --follow out")
    policy = speak(folder.model(), 0) if options.follow else Deployed(record)
    store = options.store or str(folder.folder / "served.db")

    def page_of(account: str) -> ASGIApp:
        return book_app(Book(NAME, Store(store, readonly=True, account=account), None, type(recipe), parts.renderer))

    async def outcome(episode: Episode) -> str:
        return await recipe.outcome(episode, harness) if harness else ""

    return Service({NAME: policy}, replace(options, store=store), harness, outcome, page_of)


def _engine(model: Path, version: int, renderer: Renderer, slots: int, context: int) -> Engine:
    """The model's engine, for `slots` contexts at once, or for as many as memory holds. InputError where they do not fit."""
    network = Network.load(model)
    fitting = fitting_slots(network, context, slots or SLOTS)
    if fitting < slots:
        raise InputError(f"--slots {slots} of {context} tokens do not fit into memory: leave it out, and {fitting} are taken")
    return Engine(network, renderer=renderer, slots=fitting, context=context, name=NAME, version=version)


def require() -> None:
    """InputError where the extra is missing."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(f"serving needs {error.name}: pip install 'trivium[serve]'") from error


def new_key(
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")],
    file: str = "keys.json",
    consent: bool = False,
    per_minute: int = 0,
    concurrent: int = 0,
) -> None:
    """Make an API key for `trivium serve --keys`, and print it once: the file keeps its digest alone.

    Args:
        name: whose it is
        file: the file of keys; it is made where there is none
        consent: what is said under this key may be learned from
        per_minute: requests a minute at most; 0: no limit
        concurrent: requests at once at most; 0: no limit of its own
    """
    from trivium.serve import keys

    print(keys.add(Path(file), name, consent=consent, per_minute=per_minute, concurrent=concurrent))
