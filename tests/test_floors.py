"""Law 1: a folder imports only from lower floors, folders of one floor never each other, no cycles, no torch at the door."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import trivium

ROOT = Path(trivium.__file__).parent
FLOORS = [
    {"assets", "errors", "files", "quiet", "clock", "trace"},
    {"policy", "sandbox", "corpus", "nn", "fleet"},
    {"harness", "reward", "engine", "weights"},
    {"train", "eval", "tasks"},
    {"loops", "serve", "viewer"},
    {"recipe"},
    {"agents"},
    {"cli"},
    {"__init__", "__main__"},
]
WITHIN_FLOOR_0 = {"assets": 0, "errors": 0, "files": 1, "quiet": 0, "clock": 1, "trace": 2}
WITH_TORCH = {"nn", "engine", "weights", "train"}
FILES = sorted(ROOT.rglob("*.py"))


def _room(file: Path) -> str:
    part = file.relative_to(ROOT).parts[0]
    return part.removesuffix(".py")


def _floor(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def _imports(file: Path) -> set[str]:
    """The rooms that a file imports, at the top or inside functions, type checking left out."""
    tree = ast.parse(file.read_text())
    checked = {id(n) for node in ast.walk(tree) if _is_type_checking(node) for n in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in checked:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("trivium"):
            names = node.module.split(".")[1:2] or [alias.name for alias in node.names]
            found |= set(names)
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("trivium.")}
    return found


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_a_file_imports_only_from_lower_floors(file):
    room = _room(file)
    if room == "__init__":
        return  # the front door resolves its names lazily
    for other in _imports(file) - {room}:
        if _floor(room) == _floor(other) == 0:
            assert WITHIN_FLOOR_0[other] < WITHIN_FLOOR_0[room]
        else:
            assert _floor(other) < _floor(room), f"{room} (floor {_floor(room)}) imports {other} (floor {_floor(other)})"


def test_no_import_cycles_between_modules():
    graph = {}
    for file in FILES:
        name = ".".join(("trivium", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        graph[name] = _modules(file)
    for start in graph:
        assert start not in _reachable(graph, start), f"{start} imports itself, through others"


def _modules(file: Path) -> set[str]:
    """The modules of trivium that a file imports when it is imported; `from package import module` means the module."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trivium":
            folder = ROOT.joinpath(*node.module.split(".")[1:])
            names = [alias.name for alias in node.names]
            inner = {name for name in names if (folder / f"{name}.py").exists() or (folder / name).is_dir()}
            found |= {f"{node.module}.{name}" for name in inner}
            if len(inner) < len(node.names):
                found.add(node.module)
    return found


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen, todo = set(), list(graph[start])
    while todo:
        module = todo.pop()
        if module in graph and module not in seen:
            seen.add(module)
            todo += graph[module]
    return seen


ROOMS = sorted({_room(f) for f in FILES} - {"__main__", "__init__"})


def test_importing_a_room_without_torch_imports_no_torch():
    """Nor an agent, so that help, an error and a page of episodes do not wait for what only a model needs."""
    rooms = [f"trivium.{room}" for room in ROOMS if room not in WITH_TORCH]
    agents = [
        f"trivium.agents.{name}" for name in ("search.recipe", "search.ask", "swarm.recipe", "coder.recipe", "coder.verbs")
    ]
    heavy = {"torch", "transformers", "openai", "renderers", "scipy"}
    code = f"import sys\nfor m in {['trivium', *rooms, *agents]!r}:\n __import__(m)\n heavy = {heavy!r} & set(sys.modules)\n"
    code += " assert not heavy, (m, heavy)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
