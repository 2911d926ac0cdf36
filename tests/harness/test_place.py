"""Where the actions of an episode land: opened once, seen by tools, kept in snapshots, and always closed."""

from __future__ import annotations

import asyncio

import pytest

from tests.laws.walks import TASK, snapshots
from trivium.errors import InputError, PlaceError
from trivium.harness import Harness, Limits, MemoryPlace, Subagent, Window, assign_task, tool
from trivium.harness.silence import refuse_gaps, refuse_silence, silence, silent
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Branch, Spawn, Task


@tool
def write(scene, path: str, text: str) -> str:
    """Write a file."""
    scene.place.files[path] = text
    return "written"


@tool
def read(scene, path: str) -> str:
    """Read a file."""
    return scene.place.files.get(path, "no such file")


@tool
def lose(scene) -> str:
    """The sandbox dies."""
    raise PlaceError("the sandbox is gone")


@tool
async def wait(scene) -> str:
    """Wait for ever."""
    await asyncio.sleep(99)
    return ""


def writes(path: str, text: str) -> tuple[str, dict]:
    return "write", {"path": path, "text": text}


def reads(path: str) -> tuple[str, dict]:
    return "read", {"path": path}


TOOLS = [write, read, lose, wait]


def house(place, tools=TOOLS, **options) -> Harness:
    return Harness(tools, Window(4000), "Go.", specs=False, place=place, **options)


def attempt(renderer, place, *messages, policy=None, task=TASK, watch=None):
    policy = policy or Scripted([*messages], renderer, "agent")
    return asyncio.run(house(place).run(task, policy, watch=watch))


def shown(episode) -> list[str]:
    return [piece.text.strip() for made in episode.agent.calls for piece in made.pieces]


def test_without_a_place_tools_see_none(renderer):
    @tool
    def look(scene) -> str:
        """Look."""
        return repr(scene.place)

    episode = asyncio.run(house(None, [look]).run(TASK, Scripted([call(("look", {})), say("x")], renderer, "agent")))
    assert shown(episode) == ["None"] and episode.snapshots == []


def test_each_episode_acts_in_a_place_of_its_own_whose_end_is_on_record(renderer):
    place = MemoryPlace({"a": "first"})

    async def some() -> list:
        turns = [[call(writes("a", f"mine {n}")), call(reads("a")), say("done")] for n in range(4)]
        runs = [house(place).run(TASK, Scripted(each, renderer, "agent"), sample=n) for n, each in enumerate(turns)]
        return await asyncio.gather(*runs)

    episodes = asyncio.run(some())
    assert [shown(each)[1] for each in episodes] == [f"mine {n}" for n in range(4)]
    assert place.open_files == [] and place.files == {"a": "first"}
    for number, episode in enumerate(episodes):
        (id,) = episode.snapshots
        assert place.snapshots[id] == {"a": f"mine {number}"}


def test_a_place_is_opened_for_its_task_and_once(renderer):
    opened = []

    class Noting(MemoryPlace):
        async def open(self, task, snapshot=""):
            opened.append((task.id, snapshot))
            return await super().open(task, snapshot)

    attempt(renderer, Noting(), call(reads("a")), call(reads("a")), say("x"), task=Task("t7", "?"))
    assert opened == [("t7", "")]


def test_equal_runs_have_equal_snapshots(renderer):
    ids = [attempt(renderer, MemoryPlace(), call(writes("b", "x"), writes("a", "y")), say("z")).snapshots for _ in range(2)]
    other = attempt(renderer, MemoryPlace(), call(writes("b", "x")), say("z")).snapshots
    assert ids[0] == ids[1] != other


def test_a_branch_acts_where_its_turn_began(renderer):
    place, taken, harness = MemoryPlace({"a": "0"}), [], None
    turns = [call(writes("a", "1")), call(writes("a", "2")), say("done")]
    harness = house(place)

    async def both():
        first = await harness.run(TASK, Scripted(turns, renderer, "agent"), watch=snapshots(taken))
        again = [Scripted([call(reads("a"), writes("a", f"b{n}")), say("x")], renderer, "agent") for n in range(3)]
        runs = [harness.branch(taken[n], first, again[n], sample=n + 1) for n in range(3)]
        return first, await asyncio.gather(*runs)

    first, branches = asyncio.run(both())
    assert [place.snapshots[id]["a"] for id in first.snapshots] == ["0", "1", "2", "2"], "before each turn, and at the end"
    assert [each.place for each in taken] == first.snapshots[:3]
    for number, branch in enumerate(branches):
        mine = [made for made in branch.agent.calls if made.turn >= number]
        assert mine[0].pieces[0].text == f"{number}\n"
        begun, end = branch.snapshots
        (op,) = (op for op in branch.ops if isinstance(op, Branch))
        assert begun == op.snapshot == taken[number].id and place.snapshots[end] == {"a": f"b{number}"}
    assert place.open_files == []


def test_only_a_snapshot_that_was_asked_for_in_time_can_be_branched_from(renderer):
    events, place = [], MemoryPlace()
    first = attempt(renderer, place, call(reads("a")), say("x"), watch=events.append)
    assert len(place.snapshots) == len(first.snapshots) == 1, "none is taken that nobody asked for"
    late = events[0].snapshot()
    with pytest.raises(InputError, match=rf"{first.id}@0 is no snapshot of a place: ask a TurnEvent for it while"):
        asyncio.run(house(place).branch(late, first, Scripted([say("x")], renderer, "agent"), sample=1))
    branch = asyncio.run(house(None).branch(late, first, Scripted([say("x")], renderer, "agent"), sample=1))
    assert branch.agent.stop.reason == "finished", "without a place it can be late"


class Broken(MemoryPlace):
    """Breaks where it is told to."""

    def __init__(self, where: str, error: BaseException | None = None) -> None:
        super().__init__()
        self.where, self.error = where, error or OSError("no disk")

    async def open(self, task, snapshot=""):
        if self.where == "open":
            raise self.error
        files = await super().open(task, snapshot)
        inner, home = (files.snapshot, files.close), self

        async def snapshot():
            if home.where == "snapshot":
                raise home.error
            return await inner[0]()

        async def close():
            await inner[1]()
            if home.where == "close":
                raise home.error

        files.snapshot, files.close = snapshot, close
        return files


@pytest.mark.parametrize("where", ["open", "snapshot"])
def test_a_place_that_breaks_ends_its_episode_which_is_begun_anew_and_not_scored(renderer, where):
    place = Broken(where)
    episode = attempt(renderer, place, call(reads("a")), say("x"))
    assert (episode.agent.stop.reason, episode.agent.stop.detail) == ("place", "OSError: no disk")
    assert silent(episode) and silence(episode) == "OSError: no disk" and place.open_files == []
    assert episode.agent.turns == (0 if where == "open" else 2) and episode.snapshots == []
    with pytest.raises(PlaceError, match="the place broke in 1 of 1 attempts: OSError: no disk"):
        refuse_gaps([episode])
    if where == "open":
        with pytest.raises(PlaceError, match="no disk"):
            refuse_silence([episode])
    else:
        refuse_silence([episode])


def test_what_a_person_has_to_mend_is_raised(renderer):
    with pytest.raises(InputError, match="there is no image 'x'"):
        attempt(renderer, Broken("open", InputError("there is no image 'x'")), say("x"))


def test_a_place_that_waits_for_what_was_cancelled_is_broken(renderer):
    episode = attempt(renderer, Broken("open", asyncio.CancelledError()), say("x"))
    assert (episode.agent.stop.reason, episode.agent.stop.detail) == ("place", "what the place waited for was cancelled")


def test_a_lost_snapshot_breaks_the_branch_alone(renderer):
    place, taken = MemoryPlace(), []
    first = attempt(renderer, place, call(reads("a")), say("x"), watch=snapshots(taken))
    place.snapshots.clear()
    branch = asyncio.run(house(place).branch(taken[0], first, Scripted([say("x")], renderer, "agent"), sample=1))
    assert branch.agent.stop.reason == "place" and "there is no snapshot" in branch.agent.stop.detail


def test_a_tool_that_finds_the_place_gone_ends_the_episode(renderer):
    place = MemoryPlace()
    episode = attempt(renderer, place, call(reads("a"), ("lose", {})), say("never said"))
    fine, gone = episode.agent.calls
    assert not fine.error and (gone.error, gone.fault) == ("lose failed: the sandbox is gone", "environment")
    assert (episode.agent.stop.reason, episode.agent.turns) == ("place", 1) and place.open_files == []
    assert episode.snapshots == [], "of a place that is gone there is no end to keep"


@pytest.mark.parametrize("error", [OSError("busy"), asyncio.CancelledError()])
def test_a_place_that_cannot_be_closed_is_a_warning(renderer, error):
    with pytest.warns(UserWarning, match="the place of episode walk/0 may still be open: .*(busy|cancelled)"):
        episode = attempt(renderer, Broken("close", error), call(reads("a")), say("x"))
    assert episode.agent.stop.reason == "finished" and len(episode.snapshots) == 1


def test_a_policys_bug_leaves_no_place_open(renderer):
    class Buggy(Scripted):
        async def speak(self, view, sampling):
            raise ZeroDivisionError("a bug")

    place = MemoryPlace()
    with pytest.raises(ZeroDivisionError):
        attempt(renderer, place, policy=Buggy([], renderer, "agent"))
    assert place.open_files == []


@pytest.mark.parametrize("again", [False, True])
def test_a_cancelled_attempt_leaves_no_place_open(renderer, again):
    """Nor one that is cancelled again while its place is being closed, which takes a while."""
    closed = []

    class Slow(MemoryPlace):
        async def open(self, task, snapshot=""):
            files = await super().open(task, snapshot)
            inner = files.close

            async def close():
                await asyncio.sleep(0.05)
                await inner()
                closed.append(True)

            files.close = close
            return files

    place = Slow()

    async def overtaken() -> None:
        running = asyncio.create_task(house(place).run(TASK, Scripted([call(("wait", {}))], renderer, "agent")))
        await asyncio.sleep(0.05)
        assert len(place.open_files) == 1
        running.cancel()
        if again:
            await asyncio.sleep(0.01)
            running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert place.open_files == [] and closed == [True]

    asyncio.run(overtaken())


def lead(renderer, place, child_place=None, *messages, child=None, seconds=9.0):
    inner = Harness(TOOLS, Window(3000), "Help.", Limits(turns=4), specs=False, place=child_place)
    helper = Subagent(Scripted([*messages], renderer, "helper"), inner, seconds=seconds)
    asked = ("assign_task", {"agent": "helper", "prompt": "go"})
    harness = house(place, [*TOOLS, assign_task({"helper": helper})])
    turns = [call(asked), call(reads("a")), say("done")]
    return asyncio.run(harness.run(TASK, Scripted(turns, renderer, "agent")))


def test_sub_agents_act_where_their_assigner_does(renderer):
    place = MemoryPlace({"a": "0"})
    episode = lead(renderer, place, None, call(writes("a", "by the helper")), say("done"))
    assert shown(episode)[1] == "by the helper" and len(episode.snapshots) == 1 and place.open_files == []


def test_a_sub_agent_whose_harness_has_a_place_acts_there(renderer):
    place, other = MemoryPlace({"a": "0"}), MemoryPlace()
    episode = lead(renderer, place, other, call(writes("a", "elsewhere")), say("done"))
    assert shown(episode)[1] == "0" and place.open_files == other.open_files == []
    theirs, ours = episode.snapshots
    assert other.snapshots[theirs] == {"a": "elsewhere"} and place.snapshots[ours] == {"a": "0"}


def test_a_sub_agent_out_of_time_leaves_no_place_open(renderer):
    other = MemoryPlace()
    episode = lead(renderer, MemoryPlace(), other, call(("wait", {})), seconds=0.05)
    assert episode.threads[1].stop.reason == "timeout" and other.open_files == []
    assert episode.agent.stop.reason == "finished" and [type(op) for op in episode.ops] == [Spawn]


def test_a_place_that_breaks_under_a_sub_agent_ends_the_whole_episode(renderer):
    episode = lead(renderer, MemoryPlace(), None, call(("lose", {})), say("done"))
    assert [thread.stop.reason for thread in episode.threads] == ["place", "place"]
    assert episode.agent.calls[0].fault == "environment" and silence(episode) == "the sandbox is gone"
