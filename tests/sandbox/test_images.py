"""Images: what a recipe makes, and that no leftover tells what was taken out."""

from __future__ import annotations

import compileall
import shutil
import subprocess

import pytest

from trivium.errors import InputError
from trivium.sandbox import SandboxError
from trivium.sandbox.images import build

ANSWER = "def total(prices): return 'the-answer-41' and sum(prices)\n"


@pytest.fixture
def project(tmp_path):
    """A package that had a feature, was compiled, committed, typed, built and installed, and lost the feature."""
    top = tmp_path / "project"
    (top / "shop").mkdir(parents=True)
    (top / "shop" / "cart.py").write_text(ANSWER)
    (top / "shop" / "__init__.py").write_text("")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=top, check=True)
    compileall.compile_dir(top / "shop", quiet=1)
    for place in ("build/lib/shop", ".venv/lib/python3.11/site-packages/shop", ".mypy_cache/3.11/shop", "shop.egg-info"):
        shutil.copytree(top / "shop", top / place)
    (top / "shop" / "cart.py~").write_text(ANSWER)
    (top / "shop" / "cart.py").write_text("def total(prices): raise NotImplementedError\n")
    return top


def test_an_image_holds_no_copy_of_what_was_taken_out(project, tmp_path):
    made = build(tmp_path / "image", project, {"notes/a.bin": b"\xff"})
    files = {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert set(files) == {"shop/__init__.py", "shop/cart.py", "notes/a.bin"}
    assert not any(b"the-answer-41" in data for data in files.values())


def test_files_come_over_the_base(project, tmp_path):
    made = build(tmp_path / "image", project, {"shop/cart.py": b"total = sum\n"})
    assert (made / "shop" / "cart.py").read_bytes() == b"total = sum\n"


def test_a_recipe_that_cannot_be_made_leaves_nothing(project, tmp_path):
    with pytest.raises(InputError, match="is no folder to make an image from"):
        build(tmp_path / "image", tmp_path / "nowhere")
    with pytest.raises(SandboxError, match="is no path inside"):
        build(tmp_path / "image", project, {"../out.txt": b""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["project"]
    with pytest.raises(InputError, match="is not empty"):
        build(project)
