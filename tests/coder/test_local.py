"""Boxes that isolate nothing, and hidden tests in them: what is kept, what is killed, what earns nothing."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.coder.house import TASK, WINDOW, shown
from trivium.agents.coder.hidden import HiddenTests
from trivium.agents.coder.local import Ends, LocalUnsafe
from trivium.agents.coder.tools import BRIEF, coder_tools
from trivium.errors import InputError, PlaceError
from trivium.harness import Harness, Limits
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Task

pytestmark = pytest.mark.filterwarnings("ignore:local-unsafe")
RIGHT = TASK.truth["change"]["cart.py"]
TESTS = {
    "tests/test_hidden.py": "import cart\n\n\ndef test_tax():\n    assert cart.tax(1) == 3\n\n\n"
    "def test_total():\n    assert cart.total([1, 2]) == 3\n"
}
GRADED = Task("graded", TASK.prompt, {**TASK.truth, "tests": TESTS})


@pytest.fixture
def boxes(tmp_path):
    return LocalUnsafe(tmp_path / "boxes")


def graded(boxes: LocalUnsafe, files: dict[str, str]) -> dict[str, bool]:
    """What hidden tests say of a project."""

    async def run():
        box = boxes.box()
        await box.write({path: text.encode() for path, text in files.items()})
        snapshot = await box.snapshot()
        await box.close()
        return await HiddenTests(boxes).grade(GRADED, snapshot)

    return {id.rpartition("::")[2]: passes for id, passes in asyncio.run(run()).items()}


def test_the_right_change_passes_and_doing_nothing_does_not(boxes):
    assert graded(boxes, {"cart.py": RIGHT}) == {"test_tax": True, "test_total": True}
    assert graded(boxes, TASK.truth["files"]) == {"test_tax": False, "test_total": True}
    assert [path.name for path in boxes.folder.iterdir()] == ["snapshots"], "no box is left behind"


FORGED = {
    "leaves with 0": "import os\nos._exit(0)\n",
    "sys.exit at import": "import sys\nsys.exit(0)\n",
    "prints that it passed": "print('2 passed', flush=True)\nraise SystemExit\n",
    "prints to where the runner prints": "import os\nos.write(1, b'[\"tests/test_hidden.py::test_tax\"]')\n",
    "hangs up on everything": "import os\nos.closerange(3, 64)\n",
    "is no Python": "def (\n",
    "leaves a process behind": "import os, time\nif os.fork() == 0:\n    time.sleep(300)\n    os._exit(0)\nraise SystemExit\n",
}


@pytest.mark.parametrize("trick", FORGED)
def test_what_forges_a_result_earns_nothing(boxes, trick):
    files = {
        "cart.py": FORGED[trick],
        "conftest.py": "def pytest_runtest_makereport():\n    return 'passed'\n",
        "tests/test_hidden.py": "def test_tax():\n    pass\n\n\ndef test_total():\n    pass\n",
        "json.py": "raise SystemExit\n",
        "sitecustomize.py": "import os\nos._exit(0)\n",
    }
    assert not any(graded(boxes, files).values())


def test_what_cannot_be_graded_is_no_bad_score(boxes):
    with pytest.raises(InputError, match="has no hidden tests"):
        asyncio.run(HiddenTests(boxes).grade(Task("none", "?", {"files": {}}), "x"))
    with pytest.raises(PlaceError, match="left no snapshot"):
        asyncio.run(HiddenTests(boxes).grade(GRADED, ""))
    with pytest.raises(PlaceError, match="there is no snapshot"):
        asyncio.run(HiddenTests(boxes).grade(GRADED, "0" * 24))


def attempt(renderer, boxes, *messages):
    harness = Harness(coder_tools(), WINDOW, BRIEF, Limits(turns=20), specs=False, place=boxes)
    return asyncio.run(harness.run(TASK, Scripted([*messages], renderer, "agent")))


def run(command: str):
    return call(("run", {"command": command}))


def test_an_episode_in_a_real_box(renderer, boxes):
    edit = call(("edit_file", {"path": "cart.py", "old": " return price - 2", "new": " return price + 2"}))
    check = run(" python -c 'import cart; print(cart.tax(1))'")
    episode = attempt(renderer, boxes, edit, check, run("exit 3"), run("ls; pwd >&2"), say("Done."))
    edited, printed, failed, listed = shown(episode)
    assert (edited, printed, failed) == ("Edited cart.py at line 6.", "exit 0\n3", "exit 3")
    assert listed.startswith("exit 0\ncart.py\nshop\n")
    assert (boxes.snapshots / episode.snapshots[-1] / "cart.py").read_text() == RIGHT
    assert [path.name for path in boxes.folder.iterdir()] == ["snapshots"]


def test_equal_files_have_equal_snapshots(renderer, boxes):
    one, two = (attempt(renderer, boxes, say("Done.")).snapshots for _ in range(2))
    other = attempt(renderer, boxes, call(("write_file", {"path": "x", "text": "y"})), say("Done.")).snapshots
    assert one == two != other


def test_a_command_that_never_ends_and_output_without_end(boxes):
    async def both():
        box = boxes.box()
        try:
            silent = await box.run("sleep 300 & sleep 300", 0.5, 1000)
            loud = await box.run("yes", 0.5, 1000)
            return silent, loud
        finally:
            await box.close()

    silent, loud = asyncio.run(both())
    assert silent.timed_out and silent.output == ""
    assert loud.timed_out and loud.output.startswith("y\ny\n") and "bytes left out]" in loud.output
    assert len(loud.output) < 1100


def test_what_a_command_left_running_is_killed(boxes, tmp_path):
    async def leave():
        box = boxes.box()
        outcome = await box.run(f"(sleep 300; true) >/dev/null 2>&1 & echo $! > {tmp_path}/pid", 30, 1000)
        await box.close()
        return outcome

    assert asyncio.run(leave()).code == 0
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.01)


def test_no_link_leads_out_of_a_box(renderer, boxes, tmp_path):
    (tmp_path / "secret").write_text("secret")
    link = run(f"ln -s {tmp_path} out; ln -s {tmp_path}/secret inside")
    reads = [call(("read_file", {"path": path})) for path in ("out/secret", "inside")]
    writes = call(("write_file", {"path": "out/new", "text": "x"}))
    episode = attempt(renderer, boxes, link, *reads, writes, say("Done."))
    results = shown(episode)[1:]
    assert all("there is no file" in each for each in results[:2])
    assert "cannot be written" in results[2] and not (tmp_path / "new").exists()


def test_a_name_of_odd_bytes_is_shown_escaped(boxes):
    async def listed():
        box = boxes.box()
        with open(os.fsencode(box.top) + b"/caf\xe9.py", "w") as odd:
            odd.write("x")
        try:
            return await box.files()
        finally:
            await box.close()

    assert asyncio.run(listed()) == {"caf\\xe9.py": 1}


def test_the_ends_of_an_output():
    ends = Ends(10)
    for part in (b"abc", b"defg", b"hijklmnop"):
        ends.add(part)
    assert ends.text() == "abcde\n[6 bytes left out]\nlmnop"
    short = Ends(10)
    short.add(b"abcdefghij")
    assert short.text() == "abcdefghij"


def test_it_says_that_it_isolates_nothing(tmp_path):
    with pytest.warns(UserWarning, match="isolates nothing"):
        LocalUnsafe(tmp_path)
