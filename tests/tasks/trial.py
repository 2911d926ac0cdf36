"""A Trial without a sandbox, for projects that the tests wrote: no process, no pytest."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from importlib.util import find_spec
from types import ModuleType


async def in_process(files: Mapping[str, str], command: str) -> str:
    """The named test files' functions, called one by one; or whether the package that a command asks for is installed here."""
    if command.startswith("cd / "):
        return str(find_spec(command.split('"')[1]) is None)
    modules: dict[str, ModuleType] = {}

    def load(name: str, *_) -> ModuleType:
        if f"{name}.py" not in files:
            raise ImportError(name)
        if name not in modules:
            modules[name] = ModuleType(name)
            vars(modules[name])["__builtins__"] = {**vars(builtins), "__import__": load}
            exec(files[f"{name}.py"], vars(modules[name]))
        return modules[name]

    printed = []
    for path in command.split()[command.split().index("no:cacheprovider") + 1 :]:
        space: dict = {"__builtins__": {**vars(builtins), "__import__": load}}
        try:
            exec(files[path], space)
        except ImportError:
            continue
        for name in [name for name in space if name.startswith("test_")]:
            try:
                space[name]()
                printed.append(f"PASSED {path}::{name}")
            except (AssertionError, ImportError, AttributeError, NameError) as error:
                printed.append(f"FAILED {path}::{name} - {type(error).__name__}")
    return "\n".join(printed)
