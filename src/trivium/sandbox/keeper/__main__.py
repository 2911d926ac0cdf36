"""As a script, in an interpreter that has nothing but the standard library and this folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType

for _name, _depth in (("trivium", 2), ("trivium.sandbox", 1)):  # named and not run: what they import is not here
    _package = sys.modules[_name] = ModuleType(_name)
    _package.__path__ = [str(Path(__file__).parents[_depth])]

from trivium.sandbox.keeper.boxes import Boxes  # noqa: E402
from trivium.sandbox.keeper.groups import Groups  # noqa: E402
from trivium.sandbox.keeper.kernel import adopt, mount, unmount  # noqa: E402
from trivium.sandbox.keeper.layers import Layers  # noqa: E402
from trivium.sandbox.keeper.talk import serve  # noqa: E402


def main() -> None:
    """Its words are the number of the socket, the base folder, the user that sandboxes run as."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the provider's, which closes the socket
    line, base, user = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
    line.setblocking(False)
    adopt()
    mount("tmpfs", str(base), "tmpfs", options="mode=0711")
    os.umask(0o022)
    for name in ("layers", "boxes", "runtime"):
        os.mkdir(base / name, 0o711)
    boxes = Boxes(Layers(base, user), Groups(f"trivium-{os.getpid()}-{os.urandom(4).hex()}"))
    line.send(json.dumps({"id": 0, "groups": boxes.groups.had}).encode())
    asyncio.run(serve(boxes, line))
    with contextlib.suppress(OSError):  # the folder is the provider's, which may have been killed
        os.chdir("/")
        unmount(str(base))
        base.rmdir()


if __name__ == "__main__":
    main()
