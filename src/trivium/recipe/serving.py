"""A run behind an API: its model, and the agent in the harness that it was trained in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro

from trivium.engine import Engine
from trivium.errors import InputError
from trivium.recipe.find import opened
from trivium.recipe.parts import Parts
from trivium.recipe.show import RunFolder
from trivium.recipe.verbs import check_counts
from trivium.serve.options import Options

NAME = "agent"
"""What requests call a run's model."""


def serve(run: RunFolder, options: tyro.conf.OmitArgPrefixes[Options], slots: int = 32, context: int = 0) -> None:
    """Serve a trained run over HTTP: OpenAI's and Anthropic's APIs for its model, which is called agent there.

    Args:
        run: the run's folder
        options: how it is served
        slots: requests that the model speaks for at once; more wait for their turn
        context: tokens of a conversation at most; 0: as many as the window that it was trained in
    """
    check_counts(slots=(slots, 1), context=(context, 0))
    require()
    from trivium.serve.server import run as serve_on
    from trivium.serve.service import Service

    folder, recipe = opened(run)
    parts = Parts(recipe, folder.model())
    engine = Engine(folder.model(), renderer=parts.renderer, slots=slots, context=context or parts.window.budget, name=NAME)
    store = options.store or str(folder.folder / "served.db")
    serve_on(Service({NAME: engine}, replace(options, store=store)))


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
