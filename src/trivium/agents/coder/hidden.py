"""Hidden tests: put into a fresh box beside the files of a snapshot, and run by a parent that never imports what it tests.

Each expected test runs in a process of its own, which says the word it was given on a pipe of its own once the test has
returned. So nothing that is printed counts, nor an exit code, nor a test that is not asked for: code that leaves by
`os._exit(0)` or `sys.exit`, a `conftest.py`, an edited test file (it is written over) earn nothing. Code that looks for the
word in the memory of its own process would find it. Tests are functions without arguments, as those
of `trivium.tasks.projects` are.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping

from blake3 import blake3

from trivium.agents.coder.desk import Desks
from trivium.errors import InputError, PlaceError
from trivium.sandbox import Sandbox, SandboxError
from trivium.trace import Task

SECONDS = 60.0
"""For all tests of a task together."""

_EACH = 10
"""For one of them."""

_RUNNER = """\
import json, os, secrets, select, signal, sys
asked, mark = json.loads(sys.argv[1]), sys.argv[2]
passed = []
for id in asked:
    file, _, name = id.partition("::")
    word, (reading, writing) = secrets.token_bytes(16), os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.alarm({each})
        quiet = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(quiet, fd)
        sys.argv = [file]
        sys.path.insert(0, os.getcwd())
        space = {{"__name__": "hidden", "__file__": file}}
        exec(compile(open(file).read(), file, "exec"), space)
        space[name]()
        os.write(writing, word)
        os._exit(0)
    os.close(writing)
    select.select([os.pidfd_open(child)], [], [], {each} + 5)
    os.set_blocking(reading, False)
    try:
        said = os.read(reading, 16)
    except BlockingIOError:
        said = b""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    os.close(reading)
    if said == word:
        passed.append(id)
print(mark + json.dumps(passed))
"""


class HiddenTests:
    """The grader. What it has graded it knows: equal files are not run twice."""

    def __init__(self, desks: Desks) -> None:
        self.desks = desks
        self.known: dict[tuple[str, str], dict[str, bool]] = {}

    async def grade(self, task: Task, snapshot: str) -> Mapping[str, bool]:
        """Raises InputError for a task without tests, PlaceError where they could not be run to their end."""
        if not task.truth.get("expected") or not task.truth.get("tests"):
            raise InputError(f"task {task.id} has no hidden tests: it cannot be scored")
        if not snapshot:
            raise PlaceError(f"an attempt at task {task.id} left no snapshot to grade")
        box = await self.desks.box(snapshot)
        try:
            if (key := (task.id, await _digest(box))) not in self.known:
                self.known[key] = await self._run(task, box)
        finally:
            await box.close()
        return self.known[key]

    async def _run(self, task: Task, box: Sandbox) -> dict[str, bool]:
        try:
            await box.write({path: text.encode() for path, text in task.truth["tests"].items()})
            passed = await _passed(box, list(task.truth["expected"]))
        except SandboxError as error:
            raise PlaceError(f"the hidden tests of task {task.id} cannot be put in place: {error}") from error
        return {id: id in passed for id in task.truth["expected"]}


async def _digest(box: Sandbox) -> str:
    """The hash of what a box holds."""
    hasher = blake3()
    for path, size in sorted((await box.files()).items()):
        hasher.update(f"{path}\0{size}\0".encode(errors="surrogateescape"))
        hasher.update(await box.read(path, size))
    return hasher.hexdigest()


async def _passed(box: Sandbox, expected: list[str]) -> set[str]:
    """The tests that said their word. The runner itself is no file of the box, which the graded code could have written."""
    mark = secrets.token_hex(16)
    words = ["python3", "-I", "-c", _RUNNER.format(each=_EACH), json.dumps(expected), mark]
    outcome = await box.exec(words, SECONDS)
    last = next((line for line in outcome.stdout.decode(errors="replace").splitlines() if line.startswith(mark)), "")
    if outcome.timed_out or not last:
        raise PlaceError(f"the hidden tests could not be run: {outcome.output[-300:].strip() or 'no answer'}")
    return set(json.loads(last.removeprefix(mark)))
