"""Continuations from one snapshot, what they say a choice was worth, and an attempt that goes on after a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.test_place import TASK, house, reads, writes
from trivium.errors import CorruptError, InputError, PlaceError
from trivium.harness import MemoryPlace, Saved
from trivium.loops import continuations, every_turn, surviving
from trivium.policy import Reply, Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Task
from trivium.train import CISPO, Batch
from trivium.train.batch import lessons


class Guesser(Scripted):
    """Writes what its sample says, then ends; told by its random stream, as an engine's draws are."""

    async def speak(self, view, sampling) -> Reply:
        sample, turn = view.stream[2], view.stream[4]
        script = [call(writes("a", "1")), call(reads("a"), writes("b", f"{sample}")), say("done")]
        return Reply(message=script[turn])


def guesser(renderer) -> Guesser:
    return Guesser([], renderer, "agent")


def by_file(place: MemoryPlace):
    async def scorer(episode) -> dict[str, float]:
        return {"reward": float(place.snapshots[episode.snapshots[-1]]["b"])}

    return scorer


def eight(renderer, place, turn: int):
    async def run():
        taken, harness, policy = [], house(place), guesser(renderer)
        parent = await harness.run(TASK, policy, watch=every_turn(taken))
        return parent, await continuations(harness, taken[turn], parent, policy, by_file(place))

    return asyncio.run(run())


def test_eight_continuations_begin_where_the_attempt_stood_and_part_there(renderer):
    place = MemoryPlace({"a": "0"})
    parent, branched = eight(renderer, place, turn=1)
    assert branched.rewards == [float(n) for n in range(1, 9)] and branched.value == 4.5
    assert branched.credit == [n - 4.5 for n in range(1, 9)]
    assert all(episode.agent.calls[1].pieces[0].text == "1\n" for episode in branched.episodes), "the files of turn 1"
    prefix = branched.episodes[0].agent.segments[0].carried
    for episode in branched.episodes:
        (segment,) = episode.agent.segments
        assert segment.carried == prefix and segment.tokens[:prefix] == parent.agent.segments[0].tokens[:prefix]
    assert place.open_files == []


def test_the_choice_between_two_points_has_the_difference_of_their_values(renderer):
    place = MemoryPlace()
    _, before = eight(renderer, place, turn=1)
    parent, after = eight(renderer, place, turn=2)
    assert after.rewards == [float(parent.sample)] * 8, "its choice is made, and all that comes is the same"
    assert after.value - before.value == -4.5


def test_what_is_shared_is_learned_by_nobody(renderer):
    _, branched = eight(renderer, MemoryPlace(), turn=1)
    for episode in branched.episodes:
        for segment in episode.agent.segments:
            segment.logprobs = [-1.0] * len(segment.tokens)
    every, _ = lessons(Batch([branched.group()]), CISPO(), {"agent"})
    assert all(row.mask.nonzero()[0].min() >= row.tokens.size - row.trained - 400 for lesson in every for row in lesson.rows)
    assert all(
        not row.mask[: episode.agent.segments[0].carried].any()
        for episode, lesson in zip(branched.episodes, every, strict=True)
        for row in lesson.rows
    )
    assert sum(lesson.advantage for lesson in every) == pytest.approx(0)


def test_one_continuation_is_compared_with_nothing(renderer):
    with pytest.raises(InputError, match="2 or more"):
        asyncio.run(continuations(house(None), None, None, guesser(renderer), by_file(MemoryPlace()), count=1))


def test_continuations_of_a_lost_place_say_so(renderer):
    place = MemoryPlace()

    async def run():
        taken, harness = [], house(place)
        parent = await harness.run(TASK, guesser(renderer), watch=every_turn(taken))
        place.snapshots.clear()
        await continuations(harness, taken[1], parent, guesser(renderer), by_file(place))

    with pytest.raises(PlaceError, match="there is no snapshot"):
        asyncio.run(run())


# --- after a kill


class DiskPlace(MemoryPlace):
    """A place whose snapshots outlive the process: one file each."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    async def open(self, task, snapshot=""):
        if snapshot:
            lines = (self.folder / snapshot).read_text().splitlines()
            self.snapshots[snapshot] = dict(line.split("=") for line in lines)
        opened = await super().open(task, snapshot)
        inner = opened.snapshot

        async def keep() -> str:
            id = await inner()
            (self.folder / id).write_text("\n".join(f"{name}={text}" for name, text in opened.files.items()))
            return id

        opened.snapshot = keep
        return opened


def diary(renderer, folder: Path, die_at: int = -1):
    """An attempt of four turns that writes one file a turn, and is killed before it speaks in turn `die_at`."""

    class Writer(Scripted):
        async def speak(self, view, sampling) -> Reply:
            turn = view.stream[4]
            if turn == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            script = [call(writes(f"f{n}", f"{n}"), reads(f"f{n - 1}")) for n in range(3)]
            return Reply(message=[*script, say("done")][turn])

    harness = house(DiskPlace(folder))
    return asyncio.run(surviving(harness, TASK, Writer([], renderer, "agent"), folder / "saved", sample=2, seed=7))


CHILD = """
import sys
from pathlib import Path
from tests.loops.test_futures import diary
from trivium.policy import Renderer
diary(Renderer.load(sys.argv[1]), Path(sys.argv[2]), die_at=2)
"""


def test_an_attempt_goes_on_from_its_last_snapshot_after_a_kill(renderer, tiny_model, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    expected = diary(renderer, whole)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tiny_model), str(killed)], capture_output=True, env=dict(os.environ)
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    saved = Saved.read((killed / "saved").read_bytes())
    assert saved.turn == 2 and len(saved.episode.agent.calls) == 4
    episode = diary(renderer, killed)
    assert not (killed / "saved").exists() and episode.began == saved.episode.began
    for one in (expected, episode):
        one.began = one.ended = 0.0
        for made in one.agent.calls:
            made.began = made.ended = 0.0
    assert repr(episode) == repr(expected), "the same episode, bit for bit"
    assert {path.name for path in killed.iterdir()} == {path.name for path in whole.iterdir()}


def test_what_was_saved_of_another_attempt_is_refused(renderer, tmp_path):
    path, taken = tmp_path / "saved", []

    class Dies(Scripted):
        async def speak(self, view, sampling) -> Reply:
            taken.append(path.read_bytes())
            return Reply(message=say("x"))

    asyncio.run(surviving(house(MemoryPlace()), TASK, Dies([], renderer, "agent"), path))
    path.write_bytes(taken[0])
    with pytest.raises(InputError, match="another attempt"):
        asyncio.run(surviving(house(MemoryPlace()), Task("other", "?"), guesser(renderer), path))
    with pytest.raises(InputError, match="another harness"):
        asyncio.run(surviving(house(MemoryPlace(), tools=[]), TASK, guesser(renderer), path))
    path.write_bytes(taken[0][:-9])
    with pytest.raises(CorruptError, match="torn"):
        asyncio.run(surviving(house(MemoryPlace()), TASK, guesser(renderer), path))
