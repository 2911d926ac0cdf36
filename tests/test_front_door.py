"""What `import trivium` promises: every public name is the thing itself, in whatever order it is asked for."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import trivium

ASK = "import sys, inspect, trivium; print([n for n in sys.argv[1:] if inspect.ismodule(getattr(trivium, n))])"


def test_a_public_name_is_never_the_module_that_holds_it():
    """A module imported for one name takes its own name in its package: asked backwards, `rl` once was a module."""
    for names in (trivium.__all__, trivium.__all__[::-1]):
        done = subprocess.run([sys.executable, "-c", ASK, *names], capture_output=True, text=True, env=dict(os.environ))
        assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_names_of_loops_import_as_functions():
    from trivium.loops import rl, rollouts, sft

    assert inspect.isasyncgenfunction(rl) and inspect.isfunction(rollouts) and inspect.isasyncgenfunction(sft)
