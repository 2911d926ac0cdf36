"""A person's folder: what is copied, what a diff says, and what is written back."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import shutil
import subprocess

import pytest

from tests.coder.house import WINDOW
from trivium.agents.coder import verbs
from trivium.agents.coder.desk import Desks
from trivium.agents.coder.fix import LARGEST, apply, diff, read_folder
from trivium.agents.coder.tools import BRIEF, coder_tools
from trivium.errors import InputError, PlaceError
from trivium.harness import Harness, Limits
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.sandbox import Fake, LocalUnsafe
from trivium.trace import Sampling


@pytest.fixture
def folder(tmp_path):
    top = tmp_path / "project"
    (top / "shop").mkdir(parents=True)
    (top / ".git").mkdir()
    (top / ".git" / "HEAD").write_text("ref")
    (top / "cart.py").write_text("a\nb\nc\n")
    (top / "shop" / "run.sh").write_text("echo\n")
    (top / "shop" / "run.sh").chmod(0o755)
    (top / "logo.png").write_bytes(b"\x89\0")
    return top


def test_a_copy_leaves_out_what_is_no_part_of_the_work(folder):
    (folder / "big.bin").write_bytes(b"x" * (LARGEST + 1))
    (folder / "link").symlink_to("/etc/passwd")
    with open(os.fsencode(folder) + b"/caf\xe9.py", "w") as odd:
        odd.write("x")
    copy = read_folder(folder)
    assert sorted(copy.held) == ["cart.py", "logo.png", "shop/run.sh"]
    assert len(copy.skipped) == 3


def test_no_folder_and_an_empty_one_are_refused(tmp_path):
    with pytest.raises(InputError, match="is no folder"):
        read_folder(tmp_path / "none")
    with pytest.raises(InputError, match="has no files"):
        read_folder(tmp_path)


def after(copy):
    changed = {**copy.held, "cart.py": b"a\nB\nc", "new/file.py": b"x = 1\n", "shop/run.sh": b"echo 2\n"}
    return {path: data for path, data in changed.items() if path != "logo.png"}


def test_a_diff_says_what_changed(folder):
    copy = read_folder(folder)
    text = diff(copy.held, after(copy))
    assert "--- a/cart.py\n+++ b/cart.py\n" in text and "-b\n" in text and "+B\n" in text
    assert "+c\n\\ No newline at end of file\n" in text
    assert "--- /dev/null\n+++ b/new/file.py\n" in text and "Binary files a/logo.png and /dev/null differ\n" in text
    assert diff(copy.held, copy.held) == ""


def test_a_line_ends_where_a_patch_says_that_it_ends(folder):
    before = {"old.c": b"int a;\n\x0cint b;\r\nint \xe2\x80\xa8c;\x1cd\n"}
    text = diff(before, {"old.c": before["old.c"].replace(b"int a", b"int A")})
    assert "No newline" not in text and text.count("\n-") == text.count("\n+") - 1 == 1
    (folder / "old.c").write_bytes(before["old.c"])
    if shutil.which("patch"):
        subprocess.run(["patch", "-p1", "-s", "--binary"], input=text.encode(), cwd=folder, check=True)
        assert (folder / "old.c").read_bytes() == before["old.c"].replace(b"int a", b"int A")


@pytest.mark.skipif(not shutil.which("patch"), reason="there is no patch here")
def test_patch_takes_the_diff(folder):
    copy = read_folder(folder)
    new = {**copy.held, "cart.py": b"a\nB\nc", "shop/run.sh": b"echo 2\n"}
    subprocess.run(["patch", "-p1", "-s"], input=diff(copy.held, new).encode(), cwd=folder, check=True)
    assert read_folder(folder).held == new


def test_what_changed_is_written_back_and_nothing_else(folder):
    copy = read_folder(folder)
    (folder / "own.txt").write_text("not mine to touch")
    assert apply(copy, after(copy)) == ["cart.py", "logo.png", "new/file.py", "shop/run.sh"]
    assert read_folder(folder).held == {**after(copy), "own.txt": b"not mine to touch"}
    assert (folder / "shop" / "run.sh").stat().st_mode & 0o777 == 0o755


def test_a_file_that_changed_meanwhile_stops_all_of_it(folder):
    copy = read_folder(folder)
    (folder / "shop" / "run.sh").write_text("mine\n")
    with pytest.raises(InputError, match="has changed since it was copied"):
        apply(copy, after(copy))
    assert (folder / "cart.py").read_text() == "a\nb\nc\n"


def test_a_file_comes_where_a_folder_was_and_the_other_way_round(folder):
    copy = read_folder(folder)
    new = {"shop": b"a file now\n", "cart.py/__init__.py": b"a package now\n"}
    apply(copy, new)
    assert read_folder(folder).held == new


@pytest.mark.parametrize(("mine", "theirs"), [("shop/own.txt", "shop"), ("new", "new/file.py")])
def test_what_is_in_the_way_stops_all_of_it(folder, mine, theirs):
    copy = read_folder(folder)
    (folder / mine).write_text("mine")
    before = read_folder(folder).held
    with pytest.raises(InputError, match="is in the way"):
        apply(copy, {"cart.py": b"changed\n", theirs: b"new\n"})
    assert read_folder(folder).held == before


def test_a_diff_of_names_that_are_no_text_is_text():
    assert "+++ b/odd\\xff.txt" in diff({}, {"odd\udcff.txt": b"x\n"}).encode().decode()


def test_nothing_is_written_through_a_link(folder, tmp_path):
    copy = read_folder(folder)
    (tmp_path / "outside").mkdir()
    (folder / "new").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="lies outside"):
        apply(copy, after(copy))
    assert not list((tmp_path / "outside").iterdir())


def lived(renderer, desks, *messages):
    harness = Harness(coder_tools(), WINDOW, BRIEF, Limits(turns=9), specs=False, place=desks)
    return asyncio.run(verbs.lived(harness, Scripted([*messages], renderer, "agent"), desks, "Mend it.", Sampling()))


def test_what_tests_leave_behind_is_no_change_and_a_file_of_any_name_stays(renderer, folder):
    (folder / "about__pycache__.txt").write_text("mine")
    copy = read_folder(folder)
    desks = Desks(LocalUnsafe(i_know_that_nothing_is_isolated=True), files=copy.held)
    made = "mkdir -p .pytest_cache shop/__pycache__; touch .pytest_cache/README.md shop/__pycache__/cart.pyc; echo d >> cart.py"
    _, after = lived(renderer, desks, call(("run", {"command": made})), say("Done."))
    assert apply(copy, after) == ["cart.py"] and (folder / "about__pycache__.txt").read_text() == "mine"


def test_a_sandbox_that_dies_is_one_sentence_and_none_stays_behind(renderer, folder):
    class Dying(Fake):
        closed = False

        async def close(self):
            self.closed = True
            await super().close()

    def die(command, files):
        raise PlaceError("the sandbox died")

    desks = Desks(Dying(die), files=read_folder(folder).held)
    with pytest.raises(PlaceError, match="the sandbox died"):
        lived(renderer, desks, call(("run", {"command": "make"})), say("Done."))
    assert desks.provider.closed


def test_who_ends_the_input_has_not_agreed(monkeypatch):
    keyboard, terminal = pty.openpty()
    os.write(keyboard, b"\x04")
    with open(terminal) as stdin, open(keyboard):
        monkeypatch.setattr("sys.stdin", stdin)
        assert not verbs._agreed()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert not verbs._agreed(), "and where nobody sits at a terminal nobody is asked"
