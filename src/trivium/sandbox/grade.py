"""Hidden tests that the graded code cannot forge.

Each file of tests is run in a fresh fork of the files that an episode left, where nothing of the episode runs any more. The
tests are in one process and the tested code in another (tester.py, worker.py): what the code prints, patches, exits with or
leaves behind is its own process', and the tests hold plain values that came by a pipe. The verdict comes by an output that the
tested process does not hold, behind a mark that it cannot read, and counts for the expected tests alone.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trivium.errors import InputError, PlaceError
from trivium.sandbox.base import Limits, Provider, Sandbox, SandboxError

_HERE = Path(__file__).parent
_FLAGS = ["-P", "-s", "-B"]
"""No module of the project's top, of its home folder or of its leftovers is imported by the tests' process."""
_MARKS = 128
"""Bytes of a verdict beside one for each test."""


async def grade(
    provider: Provider,
    snapshot: str,
    tests: Mapping[str, str],
    expected: Sequence[str],
    seconds: float = 60.0,
    limits: Limits = Limits(),
) -> dict[str, bool]:
    """Which of the `expected` tests (pytest's ids) pass on a snapshot. `tests` are the hidden files, path -> text, each on its
    own: a file has `seconds`, and one of plain functions is run without pytest, which is five times as fast. A test takes and
    compares plain values, paths, functions, exceptions and the project's objects. Raises InputError where no test is expected,
    or one of a file that is not there; PlaceError where the tests could not be begun."""
    files = sorted({id.partition("::")[0] for id in expected})
    if not files or (strange := [file for file in files if file not in tests]):
        raise InputError(f"there is no hidden test to grade by: {', '.join(strange) if files else 'none is expected'}")
    room = replace(limits, output=max(limits.output, _MARKS + len(expected)))
    boxes = await provider.create(snapshot, room, n=len(files))
    names = {file: [id.partition("::")[2] for id in expected if id.partition("::")[0] == file] for file in files}
    try:
        passed = await asyncio.gather(
            *(_passed(box, file, tests[file], names[file], seconds) for box, file in zip(boxes, files, strict=True))
        )
    finally:
        await asyncio.gather(*(box.close() for box in boxes))
    return {id: id in set().union(*passed) for id in expected}


async def _passed(box: Sandbox, file: str, text: str, names: list[str], seconds: float) -> set[str]:
    """The tests of a file that passed; none where their process was ended, by its time or by what it tested."""
    mark, config = secrets.token_hex(16), f".{secrets.token_hex(8)}.json"
    asked = {"file": file, "text": text, "names": names, "mark": mark, "worker": (_HERE / "worker.py").read_text()}
    try:
        await box.write({config: json.dumps(asked).encode()})
    except SandboxError as error:
        raise PlaceError(f"hidden tests cannot be put in place: {error}") from error
    result = await box.exec(["python3", *_FLAGS, "-c", (_HERE / "tester.py").read_text(), config], seconds)
    begun, *told = result.stdout.decode(errors="replace").splitlines() or [""]
    if begun != mark:
        raise PlaceError(f"hidden tests cannot be run: {result.output[-300:].strip() or 'their process never began'}")
    verdicts = (line.removeprefix(mark) for line in told if line.startswith(mark))
    verdict = next((each for each in verdicts if len(each) == len(names)), "")  # else it was ended while it wrote
    return {f"{file}::{name}" for name, passed in zip(names, verdict, strict=False) if passed == "1"}
