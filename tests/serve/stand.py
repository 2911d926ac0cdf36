"""A server as a process of its own, with a script as its model: python -m tests.serve.stand STORE MODEL_FOLDER [stdio]

With `stdio` it is an agent, and speaks MCP over stdin and stdout."""

from __future__ import annotations

import sys

from tests.serve.house import adding
from trivium.harness import Harness, Window
from trivium.policy import Renderer, Scripted
from trivium.serve.options import Options
from trivium.serve.server import run, run_stdio
from trivium.serve.service import Service

if __name__ == "__main__":
    store, folder, *stdio = sys.argv[1:]
    script = {"script": Scripted(adding, Renderer.load(folder))}
    if stdio:
        run_stdio(Service(script, Options(store=store, mcp=True, stdio=True), Harness([], Window(2048))))
    else:
        run(Service(script, Options(port=0, store=store)))
