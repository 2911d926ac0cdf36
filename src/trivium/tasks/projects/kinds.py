"""The kinds of changes, by grade: each draws a project and what is asked of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from trivium.tasks.projects.changes import TOLD, UNPLACED, Edit, Slip, commented, pending, several, shown, slip
from trivium.tasks.projects.code import (
    CONSTANTS,
    NOUNS,
    OPERATORS,
    PENDING,
    Function,
    Line,
    Module,
    Names,
    module,
    number,
    run,
    setting,
)
from trivium.tasks.projects.draft import Draft, equality

Kind = Callable[[random.Random, Names], Draft | None]


def _modules(rng: random.Random, invented: Names, files: int, functions: int) -> list[Module]:
    """So many files of at most so many functions."""
    return [module(rng, invented, rng.randrange(1 + functions // 3, functions + 1)) for _ in range(files)]


def _somewhere(rng: random.Random, modules: list[Module]) -> tuple[Module, Function]:
    home = rng.choice(modules)
    return home, rng.choice(home.functions)


def _before(modules: list[Module], slips: list[Slip]) -> tuple[Module, ...]:
    """The modules with all slips made."""
    wrong = {each.edit.path: [s.function for s in slips if s.edit.path == each.edit.path] for each in slips}
    changed = []
    for home in modules:
        for function in wrong.get(home.path, ()):
            home = home.put(function)
        changed.append(home)
    return tuple(changed)


def _draw(rng: random.Random, modules: list[Module]) -> Slip | None:
    home, right = _somewhere(rng, modules)
    return pending(home, right) if rng.random() < 0.1 else slip(rng, home, right)


# --- one edit ---------------------------------------------------------------------------------------------------------


def told(rng: random.Random, invented: Names) -> Draft | None:
    """File, function, the wrong word and the right one are all named."""
    modules = _modules(rng, invented, 1, 3)
    if (found := _draw(rng, modules)) is None:
        return None
    return Draft(found.kind, _request(rng, found), _before(modules, [found]), tuple(modules), (found.edit,))


def _request(rng: random.Random, found: Slip) -> str:
    if found.kind == "fill":
        return found.say(rng.choice(("{f} in {p} must return {new}.", "In {p}, {f} is not written. It should return {new}.")))
    return found.say(rng.choice(TOLD))


def unplaced(rng: random.Random, invented: Names) -> Draft | None:
    """The file is not named."""
    modules = _modules(rng, invented, rng.choice((2, 3)), 3)
    home, right = _somewhere(rng, modules)
    found = slip(rng, home, right)
    if found is None:
        return None
    prompt = found.say(rng.choice(UNPLACED))
    return Draft(found.kind, prompt, _before(modules, [found]), tuple(modules), (found.edit,))


def comment(rng: random.Random, invented: Names) -> Draft | None:
    """What is right stands in a comment above the wrong line."""
    modules = _modules(rng, invented, rng.choice((1, 2)), 3)
    home, right = _somewhere(rng, modules)
    found = slip(rng, home, right)
    if found is None:
        return None
    at = next(n for n, line in enumerate(right.body) if line != found.function.body[n])
    found = replace(found, function=commented(found.function, right, at))
    mended = [each.put(commented(right, right, at)) if each is home else each for each in modules]
    prompt = found.say(rng.choice(("{f} in {p} does not do what its comment says.", "In {p}, {f} and its comment differ.")))
    return Draft("comment", prompt, _before(modules, [found]), tuple(mended), (found.edit,), (home.path,))


def test(rng: random.Random, invented: Names) -> Draft | None:
    """What is right stands in a visible test."""
    settings = tuple(setting(rng, invented) for _ in range(rng.choice((1, 2, 3))))
    home = Module(f"{invented.word()}.py", settings)
    right = rng.choice(settings)
    found = slip(rng, home, right)
    if found is None:
        return None
    path = f"tests/test_{home.name}.py"
    lines = (f"\n\ndef test_{each.name}():\n    assert {each.name}() == {each.body[0].words[1]}\n" for each in settings)
    text = f"from {home.name} import {', '.join(each.name for each in settings)}\n" + "".join(lines)
    prompt = f"{path} fails: " + found.say(rng.choice(("{f} in {p} is wrong.", "mend {f} in {p}.")))
    return Draft("test", prompt, _before([home], [found]), (home,), (found.edit,), (path,), {path: text})


# --- a few edits ------------------------------------------------------------------------------------------------------


def two(rng: random.Random, invented: Names) -> Draft | None:
    """Two words of two functions, perhaps in two files."""
    modules = _modules(rng, invented, rng.choice((1, 2)), 4)
    if sum(len(each.functions) for each in modules) < 2:
        return None
    found = several(lambda: _draw(rng, modules), 2)
    prompt = " ".join(_request(rng, each) for each in found)
    return Draft("two", prompt, _before(modules, found), tuple(modules), tuple(each.edit for each in found))


def add(rng: random.Random, invented: Names) -> Draft | None:
    """A function is missing."""
    modules = _modules(rng, invented, 1, 3)
    home, last = modules[0], modules[0].functions[-1]
    parameters = tuple(rng.sample(NOUNS, 2))
    new = Function(invented.function(), parameters, (Line(("return", parameters[0], rng.choice(OPERATORS), parameters[1])),))
    end = shown(last.body[-1])
    edit = Edit(home.path, new.name, end, f"{end}\n\n\n{new.source.removesuffix(chr(10))}")
    does = " ".join(new.body[0].words)
    prompt = f"Add {new.head.removeprefix('def ').removesuffix(':')} to {home.path}. It should {does}."
    return Draft("add", prompt, (home,), (replace(home, functions=(*home.functions, new)),), (edit,))


def parameter(rng: random.Random, invented: Names) -> Draft | None:
    """A function gets one more parameter, which it adds to what it returns."""
    modules = _modules(rng, invented, 1, 3)
    home, old = _somewhere(rng, modules)
    more = rng.choice([noun for noun in NOUNS if noun not in old.parameters])
    last = old.body[-1]
    new = replace(
        old, parameters=(*old.parameters, f"{more}=0"), body=(*old.body[:-1], replace(last, words=(*last.words, "+", more)))
    )
    edits = (Edit(home.path, old.name, old.head, new.head), Edit(home.path, old.name, shown(last), shown(new.body[-1])))
    prompt = f"{old.name} in {home.path} must take {more}=0 as well, and add it."
    after = home.put(new)
    arguments = tuple(rng.randrange(1, 100) for _ in new.parameters)
    check = equality(after, new.name, arguments, run([after]))
    return Draft("parameter", prompt, (home,), (after,), edits, checks={more: [check]})


# --- edits in several places ------------------------------------------------------------------------------------------


def rename(rng: random.Random, invented: Names) -> Draft | None:
    """A function gets another name where it is defined, imported and called."""
    modules = _modules(rng, invented, 1, 3)
    home, old = _somewhere(rng, modules)
    new = replace(old, name=invented.function())
    edits, before, after = [Edit(home.path, new.name, old.head, new.head)], list(modules), [_renamed(home, old, new)]
    for _ in range(rng.choice((1, 2))):
        caller, changed, more = _caller(rng, invented, home, old, new)
        before.append(caller)
        after.append(changed)
        edits += more
    prompt = f"Rename {old.name} in {home.path} to {new.name}, also in {' and '.join(each.path for each in before[1:])}."
    gone = [f'assert not hasattr({home.name}, "{old.name}")']
    return Draft("rename", prompt, tuple(before), tuple(after), tuple(edits), checks={"old_name": gone})


def _renamed(home: Module, old: Function, new: Function) -> Module:
    return replace(home, functions=tuple(new if each.name == old.name else each for each in home.functions))


def _caller(
    rng: random.Random, invented: Names, home: Module, old: Function, new: Function
) -> tuple[Module, Module, list[Edit]]:
    """A module that calls `old`, the same when it calls `new`, and the edits between them."""
    line = f"from {home.name} import "
    called, renamed = (f"{each.name}({', '.join(old.parameters)})" for each in (old, new))
    words = ("return", called, rng.choice(OPERATORS), number(rng))
    user = Function(invented.function(), old.parameters, (Line(words),))
    caller = Module(f"{invented.word()}.py", (user, *module(rng, invented, 1).functions), (line + old.name,))
    after = user.put(0, user.body[0].put(1, renamed))
    edits = [
        Edit(caller.path, user.name, line + old.name, line + new.name),
        Edit(caller.path, user.name, shown(user.body[0]), shown(after.body[0])),
    ]
    return caller, replace(caller.put(after), top=(line + new.name,)), edits


def constant(rng: random.Random, invented: Names) -> Draft | None:
    """A number that stands in several functions gets a name."""
    named, figure = rng.choice(CONSTANTS), str(rng.randrange(2, 100))
    parameters = [tuple(rng.sample(NOUNS, 2)) for _ in range(rng.choice((2, 3)))]
    functions = tuple(
        Function(invented.function(), pair, (Line(("return", pair[0], rng.choice(OPERATORS), figure)),)) for pair in parameters
    )
    home = Module(f"{invented.word()}.py", functions)
    use = tuple(each.put(0, each.body[0].put(3, named)) for each in functions)
    top = f"{named} = {figure}"
    first = functions[0].head
    edits = [Edit(home.path, functions[0].name, first, f"{top}\n\n\n{first}")]
    edits += [Edit(home.path, a.name, shown(a.body[0]), shown(b.body[0])) for a, b in zip(functions, use, strict=True)]
    after = replace(home, functions=use, top=(top,))
    other = str(int(figure) + 1)
    results = run([replace(after, top=(f"{named} = {other}",))])
    checks = [f"{home.name}.{named} = {other}"]
    checks += [equality(home, each.name, (5, 7), results) for each in use]
    checks += [f"{home.name}.{named} = {figure}"]
    prompt = f"Give the {figure} in {home.path} a name: {named}."
    return Draft("constant", prompt, (home,), (after,), tuple(edits), checks={named.lower(): checks})


# --- longer than a window ---------------------------------------------------------------------------------------------


def notes(low: int, high: int) -> Kind:
    """A file lists from `low` to `high` changes; so many files are read that a small window does not hold them."""

    def draw(rng: random.Random, invented: Names) -> Draft | None:
        count = rng.randrange(low, high + 1)
        modules = [module(rng, invented, rng.choice((2, 3))) for _ in range(count)]
        found = several(lambda: _draw(rng, modules), count)
        found.sort(key=lambda each: [home.path for home in modules].index(each.edit.path))
        text = "".join(f"- {_request(rng, each)}\n" for each in found)
        edits = tuple(each.edit for each in found)
        prompt = rng.choice(("Make the changes that notes.txt lists.", "Do all that stands in notes.txt."))
        return Draft("notes", prompt, _before(modules, found), tuple(modules), edits, ("notes.txt",), {"notes.txt": text})

    return draw


def gather(low: int, high: int) -> Kind:
    """Each of `low` to `high` files has a limit and leads to the next one, the last one to a function that returns all limits:
    what is read first is needed last."""

    def draw(rng: random.Random, invented: Names) -> Draft:
        modules = [module(rng, invented, 15) for _ in range(rng.randrange(low, high + 1))]
        every = Function(f"every_{invented.word()}", (), (Line(tuple(PENDING.split())),))
        home = Module(f"{invented.word()}.py", (every,))
        limits = {each: number(rng) for each in modules}
        steps = zip(modules, [*modules[1:], home], strict=True)
        sources = [_limited(each, limits[each], f"import {after.name}") for each, after in steps]
        facts = {each.path: f"{each.name}={limit}" for each, limit in limits.items()}
        after = home.put(every.put(0, Line(("return", f"dict({', '.join(facts.values())})"))))
        edit = Edit(home.path, every.name, shown(every.body[0]), shown(after.functions[0].body[0]))
        returns = "is not written. It should return a dict of the limits on the way."
        prompt = f"Follow the imports from {modules[0].path}. {every.name} at their end {returns}"
        result = f"assert {home.name}.{every.name}()"
        checks = {f"limit_{each.name}": [f'{result}["{each.name}"] == {limit}'] for each, limit in limits.items()}
        return Draft("gather", prompt, (home, *sources), (after, *sources), (edit,), tuple(facts), checks=checks, facts=facts)

    return draw


def _limited(home: Module, limit: str, top: str) -> Module:
    """`home` with a limit at its top, where it is seen also of a file that is shown in part."""
    first = Function(f"limit_{home.name}", (), (Line(("return", limit)),))
    return replace(home, functions=(first, *home.functions), top=(top,))


GRADES: dict[int, tuple[Kind, ...]] = {
    0: (told,),
    1: (unplaced, comment, test),
    2: (add, parameter),
    3: (two, rename, constant),
    4: (notes(5, 7),),
    5: (notes(10, 14),),
    6: (gather(3, 5),),
}
