"""Each tool of a coder: what it shows, and the one clear error of what it cannot do."""

from __future__ import annotations

import pytest

from tests.coder.house import CART, TASK, FakeDesks, attempt, left, shown
from trivium.agents.coder.tools import middle_cut
from trivium.policy.scripted import call, say
from trivium.sandbox import Result


def results(renderer, *calls, desks=None, **options):
    """What each of `calls`, one a turn, is shown."""
    episode = attempt(renderer, *(call(each) for each in calls), say("Done."), desks=desks, **options)
    assert episode.agent.stop.reason == "finished"
    return shown(episode), episode


def one(renderer, name: str, desks=None, **arguments) -> str:
    return results(renderer, (name, arguments), desks=desks)[0][0]


def test_files_are_listed(renderer):
    assert one(renderer, "list_files") == "- cart.py\n- shop/rates.py"
    many = FakeDesks(extra={f"f{n:03}": b"" for n in range(110)} | {"__pycache__/cart.pyc": b"\0"})
    assert one(renderer, "list_files", many).endswith("(12 more)")


def test_a_file_is_read_whole_or_in_part(renderer):
    assert one(renderer, "read_file", path=" cart.py") == CART.strip("\n")
    assert one(renderer, "read_file", path="cart.py", start=5, end=6) == (
        "def tax(price):\n    return price - 2\n[lines 5-6 of 6]"
    )
    long = FakeDesks(extra={"long.txt": b"".join(b"%d\n" % n for n in range(143))})
    assert one(renderer, "read_file", long, path="long.txt").endswith("59\n[lines 1-60 of 143]")
    assert "has 6 lines, and none from 9" in one(renderer, "read_file", path="cart.py", start=9)


@pytest.mark.parametrize("odd", ["\f", "\x1c", "\x85", "\u2028"], ids=ascii)
def test_lines_are_numbered_as_python_numbers_them(renderer, odd):
    text = f"# one{odd}page\r\ndef tax(price):\r\n    return price\r\n"
    desks = FakeDesks(extra={"odd.py": text.encode()})
    assert one(renderer, "read_file", desks, path="odd.py", start=2, end=2) == "def tax(price):\n[lines 2-2 of 3]"
    assert "- odd.py:2: def tax(price):" in one(renderer, "grep", desks, pattern="def tax")
    assert "odd.py:2\ndef tax(price):\n    return price" in one(renderer, "search_code", desks, query="tax price")
    assert one(renderer, "write_file", desks, path="odd.py", text=text) == "Wrote odd.py: 3 lines."


def test_an_edit_replaces_what_stands_there_once(renderer):
    edit = ("edit_file", {"path": " cart.py", "old": " return price - 2", "new": " return price + 2"})
    desks = FakeDesks()
    (first, again), episode = results(renderer, edit, edit, desks=desks)
    assert first == "Edited cart.py at line 6."
    assert again == "Error: cart.py: the text to replace is not there."
    assert left(desks, episode)["cart.py"] == CART.replace("- 2", "+ 2")
    assert episode.agent.calls[1].fault == "arguments", "a broken call stays on record for what it is"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("return", "yield", "the text to replace is there 2 times; give more of it."),
        ("", "x", "the text to replace is empty: write_file makes a new file."),
        ("price", "price", "the new text is the old one: nothing would change."),
        ("return price  - 2", "x", "the text to replace is not there."),
    ],
)
def test_an_edit_that_is_none_has_one_clear_error(renderer, old, new, error):
    assert one(renderer, "edit_file", path="cart.py", old=old, new=new).endswith(error)


def test_a_file_is_written(renderer):
    desks = FakeDesks()
    (told, read), _ = results(
        renderer,
        ("write_file", {"path": " a/new.py", "text": "x = 1\ny = 2\n"}),
        ("read_file", {"path": "a/new.py"}),
        desks=desks,
    )
    assert (told, read) == ("Wrote a/new.py: 2 lines.", "x = 1\ny = 2")


def test_lines_are_found_by_a_pattern(renderer):
    assert one(renderer, "grep", pattern=" def t") == "- cart.py:1: def total(items):\n- cart.py:5: def tax(price):"
    assert one(renderer, "grep", pattern="nothing like it") == "Nothing matches."
    assert "is no pattern" in one(renderer, "grep", pattern="(")
    many = FakeDesks(extra={"many.py": b"x = 1\n" * 30})
    assert one(renderer, "grep", many, pattern="x = 1").endswith("(10 more)")
    evil = FakeDesks(extra={"evil.txt": b"a" * 20_000})
    assert one(renderer, "grep", evil, pattern="(a|aa)+$b") == "Nothing matches."


def test_code_is_found_by_its_words(renderer):
    found = one(renderer, "search_code", query=" tax of a price")
    assert found.startswith("cart.py:5\ndef tax(price):\n    return price - 2")
    assert "shop/rates.py:5\n    def rate(self):" in one(renderer, "search_code", query="rate")
    assert one(renderer, "search_code", query="zebra") == "Nothing like it."


def test_a_command_is_run_and_its_output_cut_in_the_middle(renderer):
    desks = FakeDesks({"ok": lambda files: Result(0, b"fine\n"), "long": lambda files: Result(1, b"a" * 5000 + b"z")})
    desks.commands["hangs"] = lambda files: Result(-9, b"begun", timed_out=True)
    (fine, long, late, none), _ = results(
        renderer, *(("run", {"command": f" {name}"}) for name in ("ok", "long", "hangs", "zzz")), desks=desks
    )
    assert (fine, late) == ("exit 0\nfine", "stopped after 60 s\nbegun")
    assert long.startswith("exit 1\naaa") and "[3,801 letters left out]" in long and long.endswith("az")
    assert none == "exit 127\nno such command"


def test_a_cut_keeps_both_ends():
    assert middle_cut("abc", 3) == "abc"
    assert middle_cut("abcdef" * 10, 10) == "abcde\n[50 letters left out]\nbcdef"


def test_to_dos_are_counted_over_calls(renderer):
    calls = [("todo", {"add": ["fix tax", " test  it"]}), ("todo", {"done": [1]}), ("todo", {"done": [7]}), ("todo", {})]
    (first, second, wrong, last), _ = results(renderer, *calls)
    assert first == "1 [ ] fix tax\n2 [ ] test it" and second == last == "1 [x] fix tax\n2 [ ] test it"
    assert wrong == "Error: there is no to-do 7; there are 2."


def test_there_is_no_fetching_unless_hosts_are_named(renderer):
    assert "there is no tool 'fetch_url'" in one(renderer, "fetch_url", url="http://127.0.0.1/")


# --- bad input (issue 57, MUST 11)


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "", "a\0b"])
@pytest.mark.parametrize("name", ["read_file", "write_file", "edit_file"])
def test_no_path_leads_out_of_the_project(renderer, name, path):
    more = {"read_file": {}, "write_file": {"text": "x"}, "edit_file": {"old": "a", "new": "b"}}[name]
    assert "is no path inside" in one(renderer, name, path=path, **more)


def test_what_is_no_text_is_told_in_one_sentence(renderer):
    desks = FakeDesks(extra={"logo.png": b"\x89PNG\0\1", "latin.txt": b"caf\xe9"})
    for path in ("logo.png", "latin.txt"):
        assert one(renderer, "read_file", desks, path=path) == f"Error: {path} is no text."
        assert one(renderer, "edit_file", desks, path=path, old="a", new="b") == f"Error: {path} is no text."
    assert "logo" not in one(renderer, "grep", desks, pattern="PNG"), "and is passed over in a search"


def test_a_file_of_100_mb_is_not_read(renderer):
    huge = FakeDesks(extra={"huge.bin": bytes(100_000_000)})
    assert "has 100,000,000 bytes, too many to read" in one(renderer, "read_file", huge, path="huge.bin")
    assert one(renderer, "grep", huge, pattern="def tax") == "- cart.py:5: def tax(price):"


def test_a_file_that_is_not_there_and_a_full_disk(renderer):
    assert one(renderer, "read_file", path="car.py") == "Error: there is no file car.py; list_files shows them."
    full = FakeDesks(disk=400)
    (wrote, still), _ = results(
        renderer, ("write_file", {"path": "b.py", "text": "x" * 400}), ("read_file", {"path": "cart.py"}), desks=full
    )
    assert wrote == "Error: b.py cannot be written: the disk is full." and still == CART.strip("\n")


def test_an_odd_name_is_shown_escaped(renderer):
    desks = FakeDesks(extra={"caf\udce9.py": b"x = 1\n"})  # a byte that is no UTF-8, as a sandbox has it
    assert "caf\\xe9.py" in one(renderer, "list_files", desks)


def test_one_episode_of_many_fails_alone(renderer):
    import asyncio

    from tests.coder.house import harness
    from trivium.policy import Scripted

    desks = FakeDesks({"kill": lambda files: (_ for _ in ()).throw(RuntimeError("bug"))})

    async def both():
        bad = Scripted([call(("run", {"command": "kill"})), say("Done.")], renderer, "agent")
        good = Scripted([call(("read_file", {"path": "cart.py"})), say("Done.")], renderer, "agent")
        return await asyncio.gather(*(harness(desks).run(TASK, each, sample=n) for n, each in enumerate((bad, good))))

    one_, two = asyncio.run(both())
    assert one_.agent.calls[0].fault == "environment" and two.agent.stop.reason == "finished" and desks.provider.alive == 0
