"""A coder in real sandboxes, and hidden tests in them: what is kept, what earns nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.coder.house import TASK, WINDOW, left, shown
from trivium.agents.coder.desk import Desks
from trivium.agents.coder.hidden import HiddenTests
from trivium.agents.coder.tools import BRIEF, coder_tools
from trivium.errors import InputError, PlaceError, Unsupported
from trivium.harness import Harness, Limits, Window
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.sandbox import LocalUnsafe, Ns
from trivium.sandbox.grade import grade
from trivium.trace import Task

RIGHT = TASK.truth["change"]["cart.py"]
TESTS = {
    "tests/test_hidden.py": "import cart\n\n\ndef test_tax():\n    assert cart.tax(1) == 3\n\n\n"
    "def test_total():\n    assert cart.total([1, 2]) == 3\n"
}
GRADED = Task("graded", TASK.prompt, {**TASK.truth, "tests": TESTS})


@pytest.fixture
def desks():
    made = Desks(LocalUnsafe(i_know_that_nothing_is_isolated=True))
    yield made
    asyncio.run(made.provider.close())


def graded(desks: Desks, files: dict[str, str]) -> dict[str, bool]:
    """What hidden tests say of a project."""

    async def run():
        box = await desks.box()
        await box.write({path: text.encode() for path, text in files.items()})
        snapshot = await box.snapshot()
        await box.close()
        return await HiddenTests(desks).grade(GRADED, snapshot)

    return {id.rpartition("::")[2]: passes for id, passes in asyncio.run(run()).items()}


def test_the_right_change_passes_and_doing_nothing_does_not(desks):
    assert graded(desks, {"cart.py": RIGHT}) == {"test_tax": True, "test_total": True}
    assert graded(desks, TASK.truth["files"]) == {"test_tax": False, "test_total": True}


def test_what_forges_a_result_earns_nothing(desks):
    """The grader of its own, by whose tests the tricks are tried (tests/sandbox/test_grade.py), is the one that is asked."""
    forger = "import os\nos.write(1, b'\\n11\\n')\nos._exit(0)\n"
    tests = "def test_tax():\n    pass\n\n\ndef test_total():\n    pass\n"
    assert not any(graded(desks, {"cart.py": forger, "tests/test_hidden.py": tests}).values())


def test_what_cannot_be_graded_is_no_bad_score(desks):
    with pytest.raises(InputError, match="has no hidden tests"):
        asyncio.run(HiddenTests(desks).grade(Task("none", "?", {"files": {}}), "x"))
    with pytest.raises(PlaceError, match="left no snapshot"):
        asyncio.run(HiddenTests(desks).grade(GRADED, ""))
    with pytest.raises(PlaceError, match="nor a snapshot"):
        asyncio.run(HiddenTests(desks).grade(GRADED, "0" * 24))


def attempt(renderer, desks, *messages, window=WINDOW):
    harness = Harness(coder_tools(), window, BRIEF, Limits(turns=30), specs=False, place=desks)
    return asyncio.run(harness.run(TASK, Scripted([*messages], renderer, "agent")))


def run(command: str):
    return call(("run", {"command": command}))


def test_an_episode_in_a_real_box(renderer, desks):
    edit = call(("edit_file", {"path": "cart.py", "old": " return price - 2", "new": " return price + 2"}))
    check = run(" python -c 'import cart; print(cart.tax(1))'")
    episode = attempt(renderer, desks, edit, check, run("exit 3"), run("ls *.py; exit 4"), say("Done."))
    edited, printed, failed, listed = shown(episode)
    assert (edited, printed, failed) == ("Edited cart.py at line 6.", "exit 0\n3", "exit 3")
    assert listed == "exit 4\ncart.py"
    assert left(desks, episode)["cart.py"] == RIGHT


def test_equal_files_are_graded_once(desks, monkeypatch):
    ran = []

    async def counting(provider, snapshot, *rest):
        ran.append(snapshot)
        return await grade(provider, snapshot, *rest)

    async def one(grader):
        box = await desks.box()
        await box.write({"cart.py": RIGHT.encode()})
        verdict = await grader.grade(GRADED, await box.snapshot())
        await box.close()
        return verdict

    async def several():
        grader = HiddenTests(desks)
        return [*await asyncio.gather(*(one(grader) for _ in range(4))), await one(grader)]

    monkeypatch.setattr("trivium.agents.coder.hidden.grade", counting)
    verdicts = asyncio.run(several())
    assert len(ran) == 1 and len(verdicts) == 5 and all(all(each.values()) for each in verdicts)


def test_a_command_that_never_ends_costs_its_own_call_alone(renderer, desks, monkeypatch):
    monkeypatch.setattr("trivium.agents.coder.tools.SECONDS", 0.5)
    episode = attempt(renderer, desks, run("sleep 300"), run("yes"), run("echo fine"), say("Done."))
    silent, loud, fine = shown(episode)
    assert silent == "stopped after 0.5 s" and loud.startswith("stopped after 0.5 s\ny\ny\n") and fine == "exit 0\nfine"
    assert len(loud) < 1400 and episode.agent.stop.reason == "finished"


@pytest.mark.parametrize(
    "provider", [Ns, lambda: LocalUnsafe(i_know_that_nothing_is_isolated=True)], ids=["ns", "local-unsafe"]
)
def test_no_call_and_no_file_of_a_policy_voids_its_attempt(renderer, provider):
    """What it brings about is scored (law 12). A place that broke would be begun anew."""
    odd = [
        *(("run", {"command": command}) for command in ("echo \0", "echo ".ljust(132_000, "x"))),
        *(("write_file", {"path": path, "text": "x"}) for path in ("a\0b", "x" * 300, "x/" * 9000)),
        *(("read_file", {"path": path}) for path in ("a\0b", "x" * 300, "x/" * 9000)),
        *(("edit_file", {"path": path, "old": "a", "new": "b"}) for path in ("a\0b", "x" * 300)),
        *(("grep", {"pattern": pattern}) for pattern in ("(", "(((x{100}){100}){100})")),
        ("write_file", {"path": "pipe", "text": "x"}),
    ]
    deep = "import os\nfor _ in range(1010): os.mkdir('a'); os.chdir('a')"
    made = run(f'mkfifo pipe; mkdir shut; chmod 000 shut; python3 -c "{deep}"')
    try:
        desks = Desks(provider())
    except Unsupported as error:
        pytest.skip(str(error))
    episode = attempt(renderer, desks, made, *map(call, odd), call(("list_files", {})), say("Done."), window=Window(10**6))
    assert episode.agent.stop.reason == "finished", episode.agent.stop.detail
    _, *told, listed = shown(episode)
    assert all(text.startswith("Error: ") and len(text) < 400 for text in told), told
    assert {each.fault for each in episode.agent.calls[1:-1]} == {"arguments"}
    assert listed == "- cart.py\n- shop/rates.py" and "cart.py" in left(desks, episode)
    asyncio.run(desks.provider.close())
