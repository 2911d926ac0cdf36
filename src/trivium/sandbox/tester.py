"""The process that hidden tests are in, with modules of the project whose calls go to another process (worker.py). Sent as text
by grade.py; it needs the standard library, and pytest where the tests do. Tests that are plain functions are called without it,
which saves its start. What is imported here is paid for by each attempt: it takes twice as long as Python itself.

Before that other process begins, the files of the tests are gone, and nothing of this one can be opened by it.
"""

import ast
import builtins
import ctypes
import importlib.machinery
import json
import os
import pathlib
import shutil
import sys
import types

KINDS = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
NOT_THEIRS = {*sys.stdlib_module_names, "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"}


class Line:
    """The conversation with the process that the tested code is in, begun when a test first imports it."""

    def __init__(self, worker):
        self.worker, self.tests, self.functions, self.classes, self.begun = worker, None, [], {}, False

    def begin(self):
        if self.tests:
            shutil.rmtree(self.tests)
        self.begun = True
        (asked, to_worker), (from_worker, told) = os.pipe(), os.pipe()
        streams = [(os.POSIX_SPAWN_DUP2, asked, 0), (os.POSIX_SPAWN_DUP2, told, 1)]
        nowhere = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        command = [sys.executable, "-B", "-c", self.worker]
        os.posix_spawn(sys.executable, command, os.environ, file_actions=[*streams, nowhere])
        os.close(asked)
        os.close(told)
        self.to_worker, self.from_worker = open(to_worker, "w"), open(from_worker)

    def ask(self, *asked, **named):
        if not self.begun:
            self.begin()
        self.tell({"ask": self.packed(list(asked)), "named": {name: self.packed(value) for name, value in named.items()}})
        while "function" in (said := self.hear()):
            answer = self.functions[said["function"]](*self.plain(said["arguments"]))
            self.tell({"answer": self.packed(answer)})
        if "raised" in said:
            raise self.exception(said["raised"])(*self.plain(said["arguments"]))
        return self.plain(said["value"])

    def tell(self, message):
        self.to_worker.write(json.dumps(message) + "\n")
        self.to_worker.flush()

    def hear(self):
        if not (line := self.from_worker.readline()):
            raise RuntimeError("the tested code's process has ended")
        return json.loads(line)

    def exception(self, kin):
        """A class of ours in place of one of theirs: one for each, so that `raises` knows it again."""
        *own, builtin = kin
        made = getattr(builtins, builtin, RuntimeError)
        made = made if isinstance(made, type) and issubclass(made, Exception) else RuntimeError
        for number, name in reversed(own):
            made = self.classes.setdefault(number, type(name, (made,), {}))
        return made

    def packed(self, value):
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is Kept:
            return {"kept": object.__getattribute__(value, "number")}
        if kind is bytes:
            return {"bytes": value.hex()}
        if kind in KINDS:
            return {KINDS[kind]: [self.packed(each) for each in value]}
        if issubclass(kind, dict):
            return {"dict": [[self.packed(key), self.packed(each)] for key, each in value.items()]}
        if isinstance(value, pathlib.PurePath):
            return {"path": str(value)}
        if callable(value):
            self.functions.append(value)
            return {"function": len(self.functions) - 1}
        raise TypeError(f"a {kind.__name__} cannot be handed to the tested code")

    def plain(self, value):
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        if kind == "bytes":
            return bytes.fromhex(inner)
        if kind == "dict":
            return {self.plain(key): self.plain(each) for key, each in inner}
        if kind == "path":
            return pathlib.Path(inner)
        if kind == "kept":
            return Kept(self, inner)
        if kind == "exception":
            return self.exception(inner)
        return {name: maker for maker, name in KINDS.items()}[kind](self.plain(each) for each in inner)


class Kept:
    """An object of the tested code. It equals no plain value, whatever it says of itself, and has no order beside one."""

    def __init__(self, line, number):
        object.__setattr__(self, "line", line)
        object.__setattr__(self, "number", number)

    def __getattr__(self, name):
        return self.line.ask("get", self, name)

    def __setattr__(self, name, value):
        self.line.ask("set", self, name, value)

    def __call__(self, *arguments, **named):
        return self.line.ask("call", self, *arguments, **named)

    def __iter__(self):
        return iter(self.line.ask("list", self))

    def __instancecheck__(self, thing):
        return type(thing) is Kept and self.line.ask("isinstance", thing, self)

    def __enter__(self):
        return self.line.ask("get", self, "__enter__")()

    def __exit__(self, *why):
        return self.line.ask("get", self, "__exit__")(None, None, None)

    def __eq__(self, other):
        return type(other) is Kept and self.line.ask("operate", "eq", self, other) is True


def _operator(name, alike):
    def operate(self, *others):
        if alike and type(others[0]) is not Kept:
            return NotImplemented
        return self.line.ask("operate", name, self, *others)

    return operate


for _name in (
    "len",
    "str",
    "repr",
    "hash",
    "bool",
    "getitem",
    "setitem",
    "delitem",
    "contains",
    "add",
    "sub",
    "mul",
    "truediv",
):
    setattr(Kept, f"__{_name}__", _operator(_name, False))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Kept, f"__{_name}__", _operator(_name, True))


class Finder:
    """Finds the project's modules, and makes each one an object of the other process."""

    def __init__(self, line):
        self.line = line
        tops = [place for place in (pathlib.Path.cwd(), pathlib.Path.cwd() / "src") if place.is_dir()]
        self.names = {path.name.removesuffix(".py") for top in tops for path in top.iterdir()} - NOT_THEIRS

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # ty: ignore[invalid-argument-type]
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        theirs = self.line.ask("import", module.__name__)
        module.__getattr__ = lambda name: self.line.ask("get", theirs, name)


def is_plain(text, names):
    """Whether the named tests are functions without arguments, in a file that neither imports pytest nor prepares them."""
    tree = ast.parse(text)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    functions = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef) and not node.decorator_list}
    prepared = any(name.startswith(("setup", "teardown")) for name in functions)
    bare = all(name in functions and not ast.unparse(functions[name]) for name in names)
    return (
        bare and not prepared and not any(name.partition(".")[0] in NOT_THEIRS - sys.stdlib_module_names for name in imported)
    )


def run_plain(file, text, names):
    """Call each of the tests; the names of those that return."""
    module, passed = types.ModuleType("hidden"), []
    module.__file__ = file
    try:
        exec(compile(text, file, "exec"), vars(module))
    except Exception:
        return passed
    for name in names:
        try:
            getattr(module, name)()
            passed.append(name)
        except Exception:
            continue
    return passed


class Results:
    """What pytest says of each test: passed is what passed in all its parts."""

    def __init__(self):
        self.passed, self.failed = set(), set()

    def pytest_runtest_logreport(self, report):
        (self.passed if report.when == "call" and report.passed else self.failed if report.failed else set()).add(report.nodeid)


def run_pytest(file, text, line):
    """The ids of the tests of a file that pytest passes, from a folder that is gone before the tested code begins."""
    import tempfile

    import pytest

    top, results = pathlib.Path(tempfile.mkdtemp()), Results()
    line.tests, place = top, top / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    options = ["-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, f"--rootdir={top}", "--import-mode=importlib"]
    pytest.main([*options, str(place)], plugins=[results])
    return results.passed - results.failed


def main(config):
    """Run the tests of one file. On standard output stands a mark that nobody else knows as soon as this process is closed to
    others, and behind a second one, for each of the names in their order, whether it passed."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    asked = json.loads(pathlib.Path(config).read_text())
    os.unlink(config)
    ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: no process of this user may open what is ours
    told, file, text = os.dup(1), asked["file"], asked["text"]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.write(told, f"{asked['mark']}\n".encode())
    line = Line(asked["worker"])
    sys.meta_path.insert(0, Finder(line))
    if is_plain(text, asked["names"]):
        passed = {f"{file}::{name}" for name in run_plain(file, text, asked["names"])}
    else:
        passed = run_pytest(file, text, line)
    verdict = "".join("01"[f"{file}::{name}" in passed] for name in asked["names"])
    os.write(told, f"{asked['mark']}{verdict}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
