"""Events for other people's trackers: TensorBoard's event files, which W&B reads too (`wandb.init(sync_tensorboard=True)`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from trivium.errors import InputError
from trivium.loops.run import Event


class TensorBoard:
    """Writes each finite number of an event as the scalar `kind/name`, such as `rl/reward` or `rl_eval/f1`, at its step.

    metrics.jsonl stays the record. The files in the folder are written anew from `events`, so that a resumed run shows no
    step that it repeats. Raises InputError where the tensorboard package is missing.
    """

    def __init__(self, folder: str | Path, events: Iterable[Event] = ()) -> None:
        require()
        from torch.utils.tensorboard import SummaryWriter

        for old in Path(folder).glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = SummaryWriter(str(folder))
        for event in events:
            self.log(event)

    def log(self, event: Event) -> None:
        """Write one event and flush it."""
        for name, value in event.metrics.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(f"{event.kind}/{name}", value, event.step)
        self._writer.flush()


def require() -> None:
    """Raise InputError where the tensorboard package is missing."""
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise InputError("--track needs TensorBoard: pip install tensorboard") from error
