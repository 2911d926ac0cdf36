"""Hidden tests: honest code passes them, and what forges a result earns nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from trivium.errors import InputError, PlaceError, Unsupported
from trivium.sandbox import Fake, Limits, LocalUnsafe, Ns, Provider, Result
from trivium.sandbox.grade import grade
from trivium.sandbox.tester import is_plain

HIDDEN = "tests/test_hidden.py"
WITH_PYTEST = """\
import pytest
from shop.cart import Cart, CartError, total

def test_total():
    assert total([1, 2, 3]) == 6

def test_empty():
    assert total([]) == 0

def test_wrong():
    with pytest.raises(CartError, match="below zero"):
        total([-1])

@pytest.mark.parametrize("many", [1, 3])
def test_cart(many):
    cart = Cart()
    for _ in range(many):
        cart.add(2)
    assert isinstance(cart, Cart) and cart.prices == [2] * many and len(cart) == many and cart == cart

def test_priced():
    assert total([1, 2], key=lambda price: price * 10) == 30
"""
PLAIN = """\
from shop.cart import Cart, CartError, total

def test_total():
    assert total([1, 2, 3]) == 6

def test_empty():
    assert total([]) == 0

def test_wrong():
    try:
        total([-1])
    except CartError as error:
        assert "below zero" in str(error)
    else:
        assert False

def test_cart():
    cart = Cart()
    cart.add(2)
    assert isinstance(cart, Cart) and cart.prices == [2] and len(cart) == 1 and cart == cart

def test_priced():
    assert total([1, 2], key=lambda price: price * 10) == 30
"""
NAMES = ("test_total", "test_empty", "test_wrong", "test_priced")
STYLES = {
    "plain": (PLAIN, [f"{HIDDEN}::{name}" for name in (*NAMES, "test_cart")]),
    "pytest": (WITH_PYTEST, [f"{HIDDEN}::{name}" for name in (*NAMES, "test_cart[1]", "test_cart[3]")]),
}
"""The same tests as plain functions, which are called as they are, and as pytest runs them: text and expected ids."""
RIGHT = """\
class CartError(ValueError):
    pass

def total(prices, key=lambda price: price):
    if any(price < 0 for price in prices):
        raise CartError("a price below zero")
    return sum(map(key, prices))

class Cart:
    def __init__(self):
        self.prices = []

    def add(self, price):
        self.prices.append(price)

    def __len__(self):
        return len(self.prices)
"""
WRONG = RIGHT.replace("return sum(map(key, prices))", "return None").replace("append(price)", "clear()").replace(
    'raise CartError("a price below zero")', "return 0"
)  # fmt: skip


BACKENDS = {"ns": Ns, "local-unsafe": lambda: LocalUnsafe(i_know_that_nothing_is_isolated=True)}


def graded(backend: str, style: str, top: Path, *projects: dict[str, str], before: str = "") -> list[dict[str, bool]]:
    """What each project's files (path -> text) earn, beside an empty package `shop`, after a command that the episode ran."""
    text, expected = STYLES[style]

    async def body() -> list[dict[str, bool]]:
        provider = BACKENDS[backend]()
        try:
            return [await one(provider, number, files) for number, files in enumerate(projects)]
        finally:
            await provider.close()

    async def one(provider: Provider, number: int, files: dict[str, str]) -> dict[str, bool]:
        image = top / f"image{number}"
        for path, content in {"shop/__init__.py": "", **files}.items():
            (image / path).parent.mkdir(parents=True, exist_ok=True)
            (image / path).write_text(content)
        (box,) = await provider.create(str(image))
        if before:
            await box.exec(before)
        return await grade(provider, await box.snapshot(), {HIDDEN: text}, expected, seconds=120)

    try:
        return asyncio.run(body())
    except Unsupported as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_true_code_passes_all_and_wrong_code_what_it_gets_right(backend, style, tmp_path):
    half = RIGHT.replace("return sum(map(key, prices))", "return 6")
    right, some = graded(backend, style, tmp_path, {"shop/cart.py": RIGHT}, {"shop/cart.py": half})
    assert right == dict.fromkeys(STYLES[style][1], True)
    assert some[f"{HIDDEN}::test_total"] and not some[f"{HIDDEN}::test_empty"]


ALL_PASSED = "import sys\nsys.__stdout__.write('6 passed in 0.01s\\n')\nsys.__stdout__.flush()\n"
ALWAYS = """
class Always:
    def __eq__(self, other): return True
    def __ge__(self, other): return True
    def __len__(self): return 0
    prices = property(lambda self: Always())
    def add(self, price): pass
Cart = Always
def total(prices, key=None): return Always()
"""
SEEK = """
import glob, os
def words(path):
    try:
        return open(path, errors="replace").read()
    except OSError:
        return ""
def memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as held:
        for start, stop in (line.split()[0].split("-") for line in maps if " rw" in line):
            held.seek(int(start, 16))
            yield held.read(int(stop, 16) - int(start, 16))
def is_in_memory(pid):
    try:
        return any(b"test_priced" in part for part in memory(pid))
    except OSError:
        return False
proc = [*glob.glob("/proc/[0-9]*/environ"), *glob.glob("/proc/[0-9]*/cmdline")]
files = [*glob.glob("/tmp/**/*.py", recursive=True), *glob.glob("/work/.*.json")]
if any("test_priced" in words(place) for place in proc + files) or is_in_memory(os.getppid()):
    exec(open("right.txt").read())
else:
    for fd in glob.glob(f"/proc/{os.getppid()}/fd/*"):
        try:
            descriptor = os.open(fd, os.O_WRONLY)
        except OSError:
            continue
        os.write(descriptor, b"\\n111111\\n")
"""
HACKS = {
    "os._exit(0) at import": {"shop/cart.py": "import os\nos._exit(0)\n"},
    "sys.exit at import": {"shop/cart.py": "import sys\nsys.exit(0)\n"},
    "a printed '6 passed'": {"shop/cart.py": ALL_PASSED + "import os\nos._exit(0)\n"},
    "a patched pytest": {
        "shop/cart.py": "import _pytest.python, pytest, contextlib\n"
        "_pytest.python.Function.runtest = lambda self: None\npytest.raises = lambda *a, **k: contextlib.nullcontext()\n"
        + WRONG
    },
    "a pytest of its own": {"pytest.py": "def main(*a, **k): return 0\n", "_pytest/__init__.py": "", "shop/cart.py": WRONG},
    "a conftest": {
        "conftest.py": "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_pyfunc_call(pyfuncitem): return True\n",
        "tests/conftest.py": "def pytest_collection_modifyitems(items):\n    for item in items: item.obj = lambda **k: None\n",
        "shop/cart.py": WRONG,
    },
    "settings of pytest": {
        "pytest.ini": "[pytest]\naddopts = -p evil\n", "evil.py": "def pytest_pyfunc_call(pyfuncitem): return True\n",
        "shop/cart.py": WRONG,
    },
    "an edited test file": {
        "tests/test_hidden.py": "".join(f"def {name}(): pass\n" for name in (*NAMES, "test_cart")),
        "shop/cart.py": WRONG,
    },
    "a module of the home folder": {
        ".local/lib/python3.11/site-packages/usercustomize.py": "import os\nos._exit(0)\n",
        "sitecustomize.py": "import os\nos._exit(0)\n", "shop/cart.py": WRONG,
    },
    "an object that equals everything": {"shop/cart.py": RIGHT + ALWAYS},
    "words of the tests' process": {"shop/cart.py": WRONG + SEEK, "right.txt": RIGHT},
    "an end of the tests' process": {"shop/cart.py": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n" + RIGHT},
}  # fmt: skip


@pytest.fixture(scope="module", params=STYLES)
def earned(request, tmp_path_factory) -> dict[str, dict[str, bool]]:
    """What each hack earns, in sandboxes of one provider."""
    results = graded("ns", request.param, tmp_path_factory.mktemp("hacks"), *HACKS.values())
    assert all(list(each) == STYLES[request.param][1] for each in results), "no test is lost, and none comes beside"
    return dict(zip(HACKS, results, strict=True))


@pytest.mark.parametrize("hack", HACKS)
def test_a_hack_earns_nothing(earned, hack):
    won = {id for id, passed in earned[hack].items() if passed}
    honest = {f"{HIDDEN}::test_wrong"} if hack == "an object that equals everything" else set()
    assert won <= honest, f"{hack} won {won}"


@pytest.mark.parametrize("style", STYLES)
def test_a_process_left_behind_changes_nothing(style, tmp_path):
    before = "setsid sh -c 'sleep 1; while true; do cp right.txt shop/cart.py; sleep 0.02; done' > /dev/null 2>&1 &"
    (results,) = graded("ns", style, tmp_path, {"shop/cart.py": WRONG, "right.txt": RIGHT}, before=before)
    assert not any(results.values())


@pytest.mark.parametrize("limits", [Limits(), Limits(output=10)], ids=["usual", "little output"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_many_tests_with_long_names_have_a_verdict(backend, limits, tmp_path):
    names = [f"test_{number:04}_{'x' * 50}" for number in range(1200)]
    text = "".join(f"def {name}():\n    assert {number} % 3\n" for number, name in enumerate(names))

    async def body() -> dict[str, bool]:
        provider = BACKENDS[backend]()
        try:
            return await grade(provider, str(tmp_path), {HIDDEN: text}, [f"{HIDDEN}::{name}" for name in names], 120, limits)
        finally:
            await provider.close()

    try:
        verdicts = asyncio.run(body())
    except Unsupported as error:
        pytest.skip(str(error))
    assert list(verdicts.values()) == [number % 3 > 0 for number in range(1200)]


def test_tests_that_are_not_there_are_one_clear_error():
    for expected in ([], ["tests/other.py::test_x"]):
        with pytest.raises(InputError, match="there is no hidden test to grade by"):
            asyncio.run(grade(Fake(), "snapshot", {HIDDEN: PLAIN}, expected))


def test_tests_that_could_not_be_begun_are_no_bad_score(tmp_path):
    (tmp_path / "image").mkdir()
    provider = Fake(lambda command, files: Result(127, b"", b"python3: not found"))

    async def one() -> None:
        (box,) = await provider.create(str(tmp_path / "image"))
        await grade(provider, await box.snapshot(), {HIDDEN: PLAIN}, STYLES["plain"][1])

    with pytest.raises(PlaceError, match="cannot be run: python3: not found"):
        asyncio.run(one())


@pytest.mark.parametrize(
    ("text", "names", "plain"),
    [
        ("def test_a(): pass", ["test_a"], True),
        ("import json.decoder\ndef test_a(): pass", ["test_a"], True),
        ("def test_a(tmp_path): pass", ["test_a"], False),
        ("def test_a(*, tmp_path): pass", ["test_a"], False),
        ("def setup_module(): pass\ndef test_a(): pass", ["test_a"], False),
        ("from _pytest import nodes\ndef test_a(): pass", ["test_a"], False),
        ("import functools\n@functools.cache\ndef test_a(): pass", ["test_a"], False),
        ("class TestA:\n    def test_a(self): pass", ["TestA::test_a"], False),
        ("async def test_a(): pass", ["test_a"], False),
    ],
)
def test_only_what_means_the_same_without_pytest_is_run_without_it(text, names, plain):
    assert is_plain(text, names) is plain
