"""A coder's house for tests: desks of fake sandboxes, whose commands are functions of their files, and a project."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trivium.agents.coder.desk import Desk, Desks
from trivium.agents.coder.summary import compaction
from trivium.agents.coder.tools import BRIEF, coder_tools
from trivium.harness import Harness, Limits, Window
from trivium.policy import Scripted
from trivium.sandbox import Fake, Result
from trivium.sandbox import Limits as Room
from trivium.trace import Episode, Task

Answer = Callable[[dict[str, bytes]], Result]


class FakeDesks(Desks):
    """Desks of fake sandboxes: `commands` are what their shell knows, `extra` files beside those of a task."""

    def __init__(self, commands: dict[str, Answer] | None = None, extra: dict[str, bytes] | None = None, **limits: int) -> None:
        self.commands = commands or {}
        super().__init__(Fake(self.answer), Room(**limits))
        self.extra = extra or {}

    def answer(self, command, files: dict[str, bytes]) -> Result:
        return self.commands.get(command, lambda files: Result(127, b"no such command"))(files)

    async def open(self, task: Task, snapshot: str = "") -> Desk:
        desk = await super().open(task, snapshot)
        if not snapshot:
            await desk.box.write(self.extra)
        return desk


def left(desks: Desks, episode: Episode) -> dict[str, str]:
    """The files that an episode left."""

    async def read() -> dict[str, str]:
        desk = await desks.open(episode.task, episode.snapshots[-1])
        texts = await desk.texts()
        await desk.close()
        return texts

    return asyncio.run(read())


CART = "def total(items):\n    return sum(items)\n\n\ndef tax(price):\n    return price - 2\n"
TASK = Task(
    "cart",
    "tax in cart.py adds 2.",
    {
        "files": {"cart.py": CART, "shop/rates.py": "RATE = 3\n\n\nclass Rates:\n    def rate(self):\n        return RATE\n"},
        "tests": {"tests/test_hidden.py": "import cart\n\n\ndef test_tax():\n    assert cart.tax(1) == 3\n"},
        "expected": ["tests/test_hidden.py::test_tax", "tests/test_hidden.py::test_total"],
        "fixed": ["tests/test_hidden.py::test_tax"],
        "change": {"cart.py": CART.replace("- 2", "+ 2")},
        "edits": [{"path": "cart.py", "name": "tax", "old": " return price - 2", "new": " return price + 2"}],
        "clues": [],
        "grade": 0,
        "kind": "operator",
    },
)
WINDOW = Window(6000, soft=0.9, hard=1.0, reply=300, summarize=compaction("own"))


def harness(desks: Desks, window: Window = WINDOW, **options) -> Harness:
    return Harness(coder_tools(**options), window, BRIEF, Limits(turns=20), specs=False, place=desks)


def attempt(renderer, *messages, desks: Desks | None = None, task: Task = TASK, window: Window = WINDOW, **options):
    """An episode that says `messages`, with what it was shown by each call."""
    policy = Scripted([*messages], renderer, "agent")
    return asyncio.run(harness(desks or FakeDesks(), window, **options).run(task, policy))


def shown(episode) -> list[str]:
    return [
        "".join(piece.text for piece in made.pieces).partition("[Token usage")[0].strip("\n") for made in episode.agent.calls
    ]
