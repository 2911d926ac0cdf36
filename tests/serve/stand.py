"""A server as a process of its own, with a script as its model: python -m tests.serve.stand STORE MODEL_FOLDER"""

from __future__ import annotations

import sys

from tests.serve.house import adding
from trivium.policy import Renderer, Scripted
from trivium.serve.options import Options
from trivium.serve.server import run
from trivium.serve.service import Service

if __name__ == "__main__":
    store, folder = sys.argv[1:]
    run(Service({"script": Scripted(adding, Renderer.load(folder))}, Options(port=0, store=store)))
