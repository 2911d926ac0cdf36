"""The TensorBoard sink: what was logged can be read back, once each, also after a resumed run."""

from __future__ import annotations

import sys

import pytest

from trivium.errors import InputError
from trivium.loops import Event
from trivium.loops.track import TensorBoard

FIRST = [Event("sft", 1, {"loss": 2.0}), Event("rl", 1, {"reward": 0.5, "gap": float("nan")}), Event("rl", 2, {"reward": 9.0})]


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_events_are_read_back_and_a_resumed_run_shows_no_struck_out_step(tmp_path):
    pytest.importorskip("tensorboard")
    sink = TensorBoard(tmp_path)
    for event in FIRST:
        sink.log(event)
    assert scalars(tmp_path) == {"sft/loss": [(1, 2.0)], "rl/reward": [(1, 0.5), (2, 9.0)]}
    resumed = TensorBoard(tmp_path, FIRST[:2])
    resumed.log(Event("rl", 2, {"reward": 0.75, "prune_accuracy": None}))
    assert scalars(tmp_path) == {"sft/loss": [(1, 2.0)], "rl/reward": [(1, 0.5), (2, 0.75)]}


def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r"pip install tensorboard"):
        TensorBoard(tmp_path)
