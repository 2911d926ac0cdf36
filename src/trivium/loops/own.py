"""What a loop of one's own needs to be stopped, gone on with, and run again when it has finished."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from trivium.errors import TriviumError
from trivium.loops.run import Event, Run
from trivium.trace import Store
from trivium.train import Checkpoints, Learner

T = TypeVar("T")


class Journal:
    """The folder of one loop: the store of its episodes, the learner's checkpoints, its events (`metrics.jsonl`) and, in the
    end, its weights. Made again with the same folder it goes on where the loop was stopped, however it was stopped.

    `step` is the step to go on from: give it to `Plan(first=...)` or `sft(first=...)`, and `store` to `rollouts`. For one
    process; a second loop has a folder of its own.
    """

    def __init__(self, folder: str | Path, learner: Learner, every: int = 10) -> None:
        """Takes the learner back to its last checkpoint; there is one `every` so many steps. Raises as `Checkpoints.load`."""
        self.folder, self.learner, self.every = Path(folder), learner, every
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store = Store(self.folder / "episodes.db")
        self._checkpoints, self._run = Checkpoints(self.folder / "checkpoints"), Run(self.folder)
        loaded = self._checkpoints.load(learner)
        self.step: int = loaded.user["step"] if loaded else 0
        for kind in ("sft", "rl"):
            self._run.forget_after(kind, self.step)

    async def keep(self, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        """The same events, each written down, with the learner's checkpoints between them and one at the end."""
        last = self.step
        async for event in events:
            self._run.log(event)
            self.step = event.step
            if self.step % self.every == 0:
                self._save()
                last = self.step
            yield event
        if last < self.step:
            self._save()

    def _save(self) -> None:
        self._checkpoints.save(self.learner, {"step": self.step})

    def events(self) -> list[Event]:
        """All that happened, from the first step on, across stops: what `viewer.learning_curve` draws."""
        return self._run.events()

    def save(self) -> Path:
        """The learner's weights as a Hugging Face folder, `model-STEP`, which is written once."""
        model = self.folder / f"model-{self.step}"
        if not model.exists():
            self.learner.network.save(model)
        return model


def run_loop(loop: Coroutine[Any, Any, T]) -> T:
    """Run a loop of one's own as a command: `run_loop(main())`. Ctrl-C ends it with one line and status 130, and what Trivium
    raises on purpose with its one sentence and status 2."""
    try:
        return asyncio.run(loop)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint, where there is one", file=sys.stderr)
        raise SystemExit(130) from None
    except TriviumError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(2) from error
