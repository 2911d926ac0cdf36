"""A coder's house for tests: desks in memory, whose commands are functions of their files, and a project to work on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trivium.agents.coder.desk import Desk, Outcome, project
from trivium.agents.coder.summary import compaction
from trivium.agents.coder.tools import BRIEF, coder_tools
from trivium.errors import PlaceError
from trivium.harness import Harness, Limits, Window
from trivium.policy import Scripted
from trivium.trace import Task

Command = Callable[[dict[str, bytes]], Outcome]
NOTHING = Outcome(127, "no such command")


@dataclass
class MemoryBox:
    """A box in memory. `full` is a disk without room; `commands` are what its shell knows."""

    home: Desks
    held: dict[str, bytes]

    async def files(self) -> dict[str, int]:
        return {path: len(data) for path, data in self.held.items()}

    async def read(self, path: str, most: int) -> bytes:
        return self.held[path][:most]

    async def write(self, files: Mapping[str, bytes]) -> None:
        if self.home.full:
            raise OSError(28, "No space left on device")
        self.held.update(files)

    async def run(self, command: str, seconds: float, output: int) -> Outcome:
        return self.home.commands.get(command, lambda files: NOTHING)(self.held)

    async def snapshot(self) -> str:
        id = f"s{len(self.home.snapshots)}"
        self.home.snapshots[id] = dict(self.held)
        return id

    async def close(self) -> None:
        self.home.open_boxes.remove(self)


@dataclass
class Desks:
    """A Place of desks in memory."""

    commands: dict[str, Command] = field(default_factory=dict)
    extra: dict[str, bytes] = field(default_factory=dict)
    full: bool = False
    snapshots: dict[str, dict[str, bytes]] = field(default_factory=dict)
    open_boxes: list[MemoryBox] = field(default_factory=list)

    async def open(self, task: Task, snapshot: str = "") -> Desk:
        if snapshot and snapshot not in self.snapshots:
            raise PlaceError(f"there is no snapshot {snapshot}")
        box = MemoryBox(self, dict(self.snapshots[snapshot]) if snapshot else {**project(task), **self.extra})
        self.open_boxes.append(box)
        return Desk(box)


CART = "def total(items):\n    return sum(items)\n\n\ndef tax(price):\n    return price - 2\n"
TASK = Task(
    "cart",
    "tax in cart.py adds 2.",
    {
        "files": {"cart.py": CART, "shop/rates.py": "RATE = 3\n\n\nclass Rates:\n    def rate(self):\n        return RATE\n"},
        "tests": {"tests/test_hidden.py": "import cart\n\n\ndef test_tax():\n    assert cart.tax(1) == 3\n"},
        "expected": ["tests/test_hidden.py::test_tax", "tests/test_hidden.py::test_total"],
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
    return asyncio.run(harness(desks or Desks(), window, **options).run(task, policy))


def shown(episode) -> list[str]:
    return [
        "".join(piece.text for piece in made.pieces).partition("[Token usage")[0].strip("\n") for made in episode.agent.calls
    ]
