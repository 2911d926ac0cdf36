"""A loop of one's own that is stopped, gone on with, and run again when it has finished."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from tests.loops.house import attempts
from tests.loops.test_real import PROBE, SAMPLING, TASKS, judge, parts
from trivium import Journal, rl, run_loop
from trivium.errors import InputError
from trivium.nn import Network


def loop(tiny_model, renderer, folder, steps, stop_after=0, every=2):
    """The steps that a process takes, and its weights; `stop_after` so many it is stopped as by a kill."""
    harness, engine, learner = parts(tiny_model, renderer)

    async def main():
        journal, seen = Journal(folder, learner, every), []
        plan = {"groups": 2, "size": 2, "steps": steps, "first": journal.step, "seed": 3, "sampling": SAMPLING}
        source = attempts(harness, TASKS, engine, lambda step: judge, store=journal.store, **plan)
        async for event in journal.keep(rl(source, learner, engine, PROBE)):
            seen.append(event.step)
            if len(seen) == stop_after:
                return seen, journal
        return seen, journal

    seen, journal = asyncio.run(main())
    return seen, journal, learner.network.digest()


def test_a_stopped_loop_goes_on_and_a_finished_one_stays_as_it_is(tiny_model, renderer, tmp_path):
    _, _, undisturbed = loop(tiny_model, renderer, tmp_path / "other", steps=5)
    seen, _, _ = loop(tiny_model, renderer, tmp_path / "mine", steps=5, stop_after=3)
    assert seen == [1, 2, 3]
    seen, journal, digest = loop(tiny_model, renderer, tmp_path / "mine", steps=5)
    assert seen == [3, 4, 5], "from the checkpoint of step 2"
    assert digest == undisturbed and [event.step for event in journal.events()] == [1, 2, 3, 4, 5]
    model = journal.save()
    assert model.name == "model-5" and Network.load(model).digest() == digest
    seen, journal, again = loop(tiny_model, renderer, tmp_path / "mine", steps=5)
    assert seen == [] and again == digest and journal.save() == model
    seen, journal, further = loop(tiny_model, renderer, tmp_path / "mine", steps=6)
    assert seen == [6] and further != digest and journal.save().name == "model-6"


SCRIPT = """
import asyncio, trivium as tv
async def main():
    print("begun", flush=True)
    await asyncio.sleep(60)
tv.run_loop(main())
"""


def test_ctrl_c_is_one_line():
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # what runs in the background may ignore it
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heard
    )
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "stopped; the same command goes on from the last checkpoint, where there is one\n"


def test_what_is_raised_on_purpose_is_one_sentence_and_a_bug_is_a_bug(capsys):
    async def mistaken():
        raise InputError("there are no tasks:\n ask for more")

    async def broken():
        raise ZeroDivisionError

    async def sound():
        return 7

    with pytest.raises(SystemExit) as stop:
        run_loop(mistaken())
    assert stop.value.code == 2 and capsys.readouterr().err == "there are no tasks: ask for more\n"
    with pytest.raises(ZeroDivisionError):
        run_loop(broken())
    assert run_loop(sound()) == 7
