"""An attempt that survives a kill: what it has come to is on disk before each turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trivium import files
from trivium.errors import InputError
from trivium.harness import Event, Harness, Saved, SnapshotEvent, TurnEvent, Watch
from trivium.policy import Policy
from trivium.trace import Episode, Task


async def surviving(harness: Harness, task: Task, policy: Policy, path: str | Path, **options: Any) -> Episode:
    """`harness.run(task, policy, **options)`, or where `path` holds such an attempt that was ended by a kill, the rest of it.

    Before each turn `path` is replaced whole by tokens, view and the id of the place's snapshot, so at most one turn is lived
    again, with its own random stream (law 11). The place's snapshots have to outlive the process. The file is removed when the
    episode has come to its end. Raises InputError where it holds an attempt at another task, CorruptError where it is torn.
    """
    path = Path(path)
    watch = _saving(path, options.pop("watch", None))
    if not path.exists():
        episode = await harness.run(task, policy, watch=watch, **options)
    else:
        saved = Saved.read(path.read_bytes())
        if (
            (at := saved.episode).task.id != task.id
            or at.sample != options.get("sample", 0)
            or at.seed != options.get("seed", 0)
        ):
            raise InputError(f"{path} holds episode {at.id} of another attempt: give this one a file of its own")
        episode = await harness.resume(saved, policy, watch=watch, seconds=options.get("seconds"))
    path.unlink(missing_ok=True)
    return episode


def _saving(path: Path, inner: Watch | None) -> Watch:
    """A watch that writes each snapshot to `path`, and tells `inner` what happens."""

    def watch(event: Event) -> None:
        if isinstance(event, TurnEvent) and event.is_agent:
            event.snapshot()
        if isinstance(event, SnapshotEvent):
            files.swap(path, Saved.of(event.snapshot, event.episode).encoded())
        if inner:
            inner(event)

    return watch
