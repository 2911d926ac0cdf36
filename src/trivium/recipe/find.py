"""Where an agent's class is: in the package, or in a user's own file; and the class of a run that is there."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import shutil
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.errors import CorruptError, InputError
from trivium.loops.run import Run, read_json, write_json

if TYPE_CHECKING:
    from trivium.recipe.base import Recipe


@dataclass(frozen=True, slots=True)
class Home:
    """Where a class is: a module of an installed package, or a file by its whole path; and the class's name."""

    module: str
    file: str
    name: str

    def load(self) -> type[Recipe]:
        """The class. InputError where it is not there any more, or its file cannot be run."""
        module = _module_in(Path(self.file)) if self.file else _imported(self.module)
        if not isinstance(cls := getattr(module, self.name, None), type):
            raise InputError(f"{self.file or self.module} has no class {self.name}")
        return cls


def home_of(cls: type[Recipe]) -> Home:
    """A class of the package is known by its module; any other by its file, which may be a script that runs now."""
    if cls.__module__.split(".")[0] == "trivium":
        return Home(cls.__module__, "", cls.__qualname__)
    try:
        return Home("", str(Path(inspect.getfile(cls)).resolve()), cls.__qualname__)
    except (OSError, TypeError) as error:
        raise InputError(f"the class {cls.__qualname__} stands in no file, where workers could find it") from error


def find(name: str) -> type[Recipe]:
    """An agent by name (`trivium train NAME`): one of the package, or the class in a Python file (FILE.py, or FILE.py:CLASS
    where there are several). InputError that says what there is."""
    path, _, wanted = name.partition(":")
    if path.endswith(".py"):
        return _in_file(Path(path), wanted)
    if name in (known := shipped()):
        return known[name]
    raise InputError(f"there is no agent {name!r}; there are {', '.join(known)}, and your own: trivium train FILE.py")


def shipped() -> dict[str, type[Recipe]]:
    """The package's own agents: each folder of `trivium.agents` that names its class in AGENT."""
    package = importlib.import_module("trivium.agents")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg)
    return {name: importlib.import_module(f"trivium.agents.{name}").AGENT for name in names}


def _in_file(path: Path, wanted: str) -> type[Recipe]:
    from trivium.recipe.base import Recipe

    module = _module_in(path)
    classes = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Recipe) and value.__module__ == module.__name__
    }
    if wanted and wanted not in classes:
        raise InputError(f"{path} has no recipe {wanted}; it has {', '.join(classes) or 'none'}")
    if not classes:
        raise InputError(f"{path} has no agent: write a class of it, @dataclass(frozen=True) class Mine(tv.Recipe)")
    if len(classes) > 1 and not wanted:
        raise InputError(f"{path} has several agents: write {path}:{next(iter(classes))}, or another of {', '.join(classes)}")
    return classes[wanted or next(iter(classes))]


def _module_in(path: Path) -> Any:
    """A file as a module, run once a process; its folder is searched for what it imports. InputError with the line at which
    it fails."""
    path = path.resolve()
    for module in list(sys.modules.values()):
        if (file := getattr(module, "__file__", None)) and module.__name__ != "__main__" and Path(file) == path:
            return module
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_agent"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # for what ends in .py there is one
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"{path} cannot be run: {_where(error, path)}{type(error).__name__}: {error}") from error
    return module


def _where(error: Exception, path: Path) -> str:
    """The last line of the file that an error came through."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: "
    lines, frame = [], error.__traceback__
    while frame is not None:
        lines += [frame.tb_lineno] if frame.tb_frame.f_code.co_filename == str(path) else []
        frame = frame.tb_next
    return f"line {lines[-1]}: " if lines else ""


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{module} cannot be imported: {error}") from error


# --- runs


def remember(run: Run, cls: type[Recipe]) -> None:
    """Keep in a run's folder whose run it is, with a copy of a user's own file, so that the folder stands alone."""
    home, path = home_of(cls), run.folder / "agent.json"
    if not path.exists():
        if home.file:
            shutil.copyfile(home.file, run.folder / "agent.py")
        write_json(path, asdict(home))


def class_of(run: Run) -> type[Recipe]:
    """The class of a run: a user's file where it was, or else the copy that the run keeps. InputError for an agent that is
    not there any more."""
    path, copy = run.folder / "agent.json", run.folder / "agent.py"
    if not path.is_file():
        return _by_fields(run)
    try:
        home = Home(**read_json(path))
    except TypeError as error:
        raise CorruptError(f"{path} names no agent: {error}") from error
    if home.file and not Path(home.file).is_file() and copy.is_file():
        home = Home("", str(copy.resolve()), home.name)
    return home.load()


def _by_fields(run: Run) -> type[Recipe]:
    """Runs from before an agent was a class do not say whose they are: of the agent that has their fields."""
    names = run.recipe().keys()
    for cls in shipped().values():
        if names <= {field.name for field in fields(cls)}:
            return cls
    raise InputError(f"{run.folder} was made by another Trivium: no agent has its recipe's fields")


def opened(folder: str) -> tuple[Run, Recipe]:
    """A run that is there, and its recipe. InputError if it is none."""
    run = Run.open(folder)
    return run, class_of(run).of(run.recipe(), folder)
