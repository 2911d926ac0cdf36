"""A feature taken out of a package: with its exports and its tests, and only where nothing else needs it."""

from __future__ import annotations

import asyncio

import pytest
from trial import in_process

from trivium.errors import InputError
from trivium.tasks.features import Feature, features, package_files, without

SHAPES = '''"""Areas."""

__all__ = [
    "square",
    "circle",
]

PI = 3


def square(a):
    """The area of a square. Sides are equal.

    More words.
    """
    return a * a


def circle(r):
    """The area of a circle, roughly."""
    area = PI * square(r)
    return area


def ring(r, s):
    """What lies between two circles."""
    outer = PI * r * r
    inner = PI * s * s
    return outer - inner


def _hidden(a):
    b = a
    c = b
    return c
'''
TESTS = """from shapes import circle, square


def test_square():
    assert square(2) == 4


def test_circle():
    assert circle(1) == 3
    assert circle(2) == 12


def test_ring():
    from shapes import ring

    assert ring(2, 1) == 9
"""
FILES = {"shapes.py": SHAPES, "tests/test_shapes.py": TESTS, "README.md": "Shapes."}


@pytest.fixture(scope="module")
def made():
    return {task.id: task for task in asyncio.run(features(FILES, in_process))}


def test_only_what_nothing_else_uses_is_taken_out(made):
    assert set(made) == {"shapes.py:circle", "shapes.py:ring"}


def test_the_feature_is_gone_with_its_export_and_its_tests(made):
    truth = made["shapes.py:circle"].truth
    assert "circle" not in truth["files"]["shapes.py"].replace("circles", "") and '"square",' in truth["files"]["shapes.py"]
    visible = truth["files"]["tests/test_shapes.py"]
    assert "circle" not in visible and "from shapes import square" in visible and "def test_ring" in visible
    assert truth["tests"] == {"tests/test_shapes.py": TESTS} and truth["change"] == {"shapes.py": SHAPES}
    assert made["shapes.py:circle"].prompt == "circle is missing from shapes.py. The area of a circle, roughly."


def test_its_tests_fail_without_it_and_all_others_pass(made):
    assert made["shapes.py:ring"].truth["fixed"] == ["tests/test_shapes.py::test_ring"]
    for task in made.values():
        visible = asyncio.run(in_process(task.truth["files"], "pytest -p no:cacheprovider tests/test_shapes.py"))
        assert "FAILED" not in visible and visible.count("PASSED") == 2


def test_a_sandbox_that_holds_another_copy_is_refused():
    async def installed(files, command):
        return "False" if command.startswith("cd / ") else await in_process(files, command)

    with pytest.raises(InputError, match="another copy of shapes can be imported"):
        asyncio.run(features(FILES, installed))


def test_a_deletion_that_breaks_something_else_is_dropped():
    count = "\n\ndef test_count():\n    import shapes\n\n    assert shapes.__doc__\n"
    entangled = FILES | {"tests/test_shapes.py": TESTS + count}

    async def counting(files, command):
        """As if `test_count` needed all shapes."""
        printed = await in_process(files, command)
        return printed if files == entangled else printed.replace("PASSED tests/test_shapes.py::test_count", "")

    assert asyncio.run(features(entangled, in_process)) != []
    assert asyncio.run(features(entangled, counting)) == []


def test_names_in_imports_are_cut_one_by_one():
    one, two = "def one():\n    pass\n\n\n", "def two():\n    pass\n"
    files = {"a/__init__.py": "from a.b import (\n    one,\n    two,\n)\n", "a/b.py": one + two}
    assert without(files, Feature("a/b.py", "two", 2, "")) == {"a/__init__.py": "from a.b import one\n", "a/b.py": one}


@pytest.mark.parametrize("odd", ["\f", "\x1c", "\x85", "\u2028", "\r", "\r\n"], ids=ascii)
def test_what_is_cut_is_the_definition_whatever_letters_stand_before_it(odd):
    keep, gone = f'"""A page.{odd}"""\n\n\ndef keep(x):\n    return x\n', "def gone(x):\n    a = x\n    return a\n"
    assert without({"a.py": keep + gone}, Feature("a.py", "gone", 3, "")) == {"a.py": keep}


def test_files_of_a_package_begin_with_its_name_and_leave_out_caches(tmp_path):
    package = tmp_path / "site" / "shapes"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text(SHAPES)
    (package / "__pycache__" / "x.py").write_text("")
    (package / "data.bin").write_bytes(b"\xff\xfe\x00")
    assert list(package_files(package)) == ["shapes/__init__.py"]
    with pytest.raises(InputError, match="there is no folder"):
        package_files(tmp_path / "none")
