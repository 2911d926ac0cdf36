"""An attempt's seconds: what used them up is scored as far as it came, what hung before its first word is infrastructure."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.laws.walks import TASK
from trivium.harness import Harness, MemoryPlace, Subagent, Window, assign_task, silence, silence_error, tool
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Store, rows

SECONDS = 0.2


@tool
async def wait(scene) -> str:
    """Wait for ever."""
    await asyncio.sleep(99)
    return ""


@tool
def write(scene, text: str) -> str:
    """Write a note."""
    scene.place.files["note"] = text
    return "written"


class Falls(Scripted):
    """Speaks its messages, then thinks for ever."""

    async def speak(self, view, sampling):
        if self._count == len(self.script):
            await asyncio.sleep(99)
        return await super().speak(view, sampling)


def attempt(renderer, *messages, tools=(wait,), place=None, seconds=SECONDS, policy=Falls):
    policy = policy([*messages], renderer, "agent")
    harness = Harness(tools, Window(4000), "Go.", specs=False, place=place)
    return asyncio.run(harness.run(TASK, policy, seconds=seconds))


def test_a_policy_that_thinks_for_ever_ends_with_what_it_said(renderer, tmp_path):
    episode = attempt(renderer, call(("write", {"text": "a"})), tools=[write], place=MemoryPlace())
    assert (episode.agent.stop.reason, episode.agent.stop.detail) == ("timeout", "its 0.2 s were used up")
    assert episode.agent.turns == 1 and episode.agent.calls[0].error == "" and not silence(episode)
    assert rows(episode, {"agent"})[0].trained > 0, "and can be learned from"
    store = Store(tmp_path / "episodes.db")
    store.write([episode])
    assert next(store.select()).agent.stop == episode.agent.stop


def test_a_tool_that_takes_the_time_is_the_policys_own_doing_too(renderer):
    episode = attempt(renderer, call(("wait", {})))
    assert episode.agent.stop.reason == "timeout" and not silence(episode)
    (waited,) = episode.agent.calls
    assert (waited.fault, waited.error) == ("aborted", "wait was cancelled with its turn")


def test_what_is_in_its_place_is_kept_to_be_judged(renderer):
    place = MemoryPlace()
    episode = attempt(renderer, call(("write", {"text": "half a proof"})), tools=[write], place=place)
    assert place.snapshots[episode.snapshots[-1]] == {"note": "half a proof"} and not place.open_files


def test_a_sub_agent_at_work_is_on_record_and_none_lives_on(renderer):
    child = Subagent(Falls([], renderer, "child"), Harness([], Window(2000), specs=False))
    episode = attempt(
        renderer, call(("assign_task", {"agent": "finder", "prompt": "?"})), tools=[assign_task({"finder": child})]
    )
    assert [thread.stop.reason for thread in episode.threads] == ["timeout", "timeout"] and not silence(episode)


def test_who_said_nothing_hung_with_its_engine(renderer):
    episode = attempt(renderer)
    assert episode.agent.stop.reason == "timeout"
    assert silence(episode) == "agent said nothing before its 0.2 s were used up"
    assert type(silence_error(episode)).__name__ == "PolicyError"


@pytest.mark.parametrize("part", ["open", "snapshot"])
def test_a_place_that_hangs_is_broken(renderer, part):
    class Hanging(MemoryPlace):
        async def open(self, task, snapshot=""):
            if part == "open":
                await asyncio.sleep(99)
            files = await super().open(task, snapshot)
            files.snapshot = lambda: asyncio.sleep(99)
            return files

    place = Hanging()
    episode = attempt(renderer, say("#1"), place=place, policy=Scripted)
    assert (episode.agent.stop.reason, episode.agent.stop.detail) == ("place", "it took longer than 0.2 s")
    assert silence(episode) and not place.open_files
    assert type(silence_error(episode)).__name__ == "PlaceError"


def test_whoever_cancels_an_attempt_gets_no_episode_and_without_seconds_there_is_no_end(renderer):
    policy = Falls([], renderer, "agent")
    harness = Harness([wait], Window(4000), "Go.", specs=False)

    async def main(seconds):
        running = asyncio.create_task(harness.run(TASK, policy, seconds=seconds))
        await asyncio.sleep(0.3)
        assert not running.done()
        running.cancel()
        with suppress(asyncio.CancelledError):
            return await running

    assert asyncio.run(main(30)) is None and asyncio.run(main(None)) is None


def test_a_time_out_of_the_policys_own_is_no_end_of_its_seconds(renderer):
    class Odd(Scripted):
        async def speak(self, view, sampling):
            raise TimeoutError("its server's")

    with pytest.raises(TimeoutError, match="its server's"):
        attempt(renderer, policy=Odd)
