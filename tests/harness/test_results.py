"""How results share the room that is left: texts with a note of what is missing, passages without the last, in call order."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.laws.walks import TASK, keep, search, search_corpus
from trivium.harness import Harness, Passage, ToolError, Window, prune_chunks, tool
from trivium.harness.results import shortened
from trivium.policy import Scripted
from trivium.policy.scripted import call, say


@tool
def text(scene, letters: int) -> str:
    """A text of so many letters: begin, 0123..., end."""
    return ("begin " + "0123456789" * (letters // 10 + 1))[: letters - 4] + " end"


@tool
def pages(scene, name: str, count: int, letters: int = 60) -> list[Passage]:
    """So many passages."""
    return [Passage(f"{name}{n}", f"{name}{n} ".ljust(letters, ".")) for n in range(count)]


@tool
def complain(scene, letters: int) -> str:
    """Says no at length."""
    raise ToolError("x" * letters)


def life(renderer, *calls, budget=1000, reply=60, then=()):
    window = Window(budget, soft=0.9, hard=1.0, reply=reply)
    harness = Harness([text, pages, complain, search_corpus, prune_chunks], window, "Go.", specs=False)
    return asyncio.run(harness.run(TASK, Scripted([call(*calls), *then, say("#1")], renderer, "agent")))


def room_after(episode) -> int:
    """Tokens that are still free when the policy speaks again."""
    return 1000 - episode.agent.segments[0].sampled()[1].start


def shown(call) -> str:
    return "".join(piece.text for piece in call.pieces)


def test_a_text_that_fits_is_shown_whole(renderer):
    (made,) = life(renderer, ("text", {"letters": 500})).agent.calls
    assert shown(made).startswith("begin 0123") and shown(made).endswith("9 end\n") and "left out" not in shown(made)
    assert len(shown(made)) == 501


def test_a_text_too_long_keeps_its_ends_and_says_how_much_is_missing(renderer):
    episode = life(renderer, ("text", {"letters": 30_000}))
    (made,) = episode.agent.calls
    assert not made.error and episode.agent.stop.reason == "finished"
    head, note, tail = re.fullmatch(r"(.*)\n\[([\d,]+) tokens left out\]\n(.*)\n", shown(made), re.DOTALL).groups()
    assert head.startswith("begin 0123") and tail.endswith("9 end") and abs(len(head) - len(tail)) <= 1
    assert int(note.replace(",", "")) == 30_000 - len(head) - len(tail), "a token is a letter here"
    assert 60 <= room_after(episode) <= 65, "the room is used but for the reply's"
    assert shown(made) in renderer.decode(episode.agent.segments[0].tokens)


def test_where_only_a_scrap_would_be_left_the_call_has_failed(renderer):
    episode = life(renderer, ("pages", {"name": "A", "count": 8}), ("text", {"letters": 3000}), budget=900)
    first, second = episode.agent.calls
    assert len(first.pieces) == 8 and "left out" in shown(second)
    episode = life(renderer, ("pages", {"name": "A", "count": 12}), ("text", {"letters": 3000}), budget=1000)
    first, second = episode.agent.calls
    assert (second.error, second.fault) == ("the result takes 3000 tokens: no room for it", "arguments")
    assert shown(second) == "Error: the result takes 3000 tokens: no room for it\n" and episode.agent.stop.reason == "finished"


@pytest.mark.parametrize("first_is_text", [True, False])
def test_calls_share_the_room_in_their_order(renderer, first_is_text):
    long = ("text", {"letters": 5000})
    many = ("pages", {"name": "A", "count": 30})
    episode = life(renderer, *((long, many) if first_is_text else (many, long)), search())
    first, second, third = episode.agent.calls
    if first_is_text:
        assert "left out" in shown(first) and shown(second) == shown(third) == "No room for results.\n"
    else:
        assert 3 < len(first.pieces) < 30 and "no room for it" in second.error and shown(third) == "No room for results.\n"
    assert episode.agent.stop.reason == "finished"


def test_two_texts_share_the_room_in_their_order(renderer):
    episode = life(renderer, ("text", {"letters": 400}), ("text", {"letters": 5000}), ("text", {"letters": 100}))
    first, second, third = episode.agent.calls
    assert "left out" not in shown(first) and len(shown(first)) == 401
    assert "left out" in shown(second) and shown(third).endswith(" end\n"), "what is short as an error is not cut"
    episode = life(renderer, ("text", {"letters": 5000}), ("text", {"letters": 400}))
    first, second = episode.agent.calls
    assert "left out" in shown(first) and "takes 400 tokens: no room for it" in second.error


def test_a_long_error_gives_way_last(renderer):
    episode = life(renderer, ("complain", {"letters": 600}), ("pages", {"name": "A", "count": 9}))
    error, passages = episode.agent.calls
    assert len(error.error) == 600 and 1 <= len(passages.pieces) < 9
    episode = life(renderer, ("complain", {"letters": 900}), ("pages", {"name": "A", "count": 9}))
    error, passages = episode.agent.calls
    assert (error.error, error.fault) == ("x" * 80, "arguments") and shown(passages) == "No room for results.\n"


def test_results_that_fit_after_a_prune_alone_are_placed(renderer):
    """Together they take more than the window until the prune has taken its chunks out; then they leave its reply."""
    second = call(keep("#1"), ("pages", {"name": "B", "count": 3, "letters": 80}))
    episode = life(renderer, ("pages", {"name": "A", "count": 6, "letters": 80}), budget=1100, then=[second])
    before, after = episode.agent.segments
    assert len(before.tokens) > 1100 and len(after.tokens) < 1100
    _, pruned, more = episode.agent.calls
    assert len(more.pieces) == 3 and episode.ops[0].chunks == ("#2", "#3", "#4", "#5", "#6")
    assert after.sampled()[0].start <= 1100 - 60


@pytest.mark.parametrize("room", [0, 5, 38, 39, 40, 45, 50, 200, 999, 1000, 5000])
def test_a_text_is_shortened_to_its_room(room):
    whole = "".join(chr(97 + n % 26) for n in range(1000))
    short = shortened(whole, room, len)
    assert len(short) <= room
    assert (short == "") == (room < 39) and (short == whole) == (room >= 1000)
    if short not in ("", whole):
        head, note, tail = re.fullmatch(r"(\w+)\n\[([\d,]+) tokens left out\]\n(\w+)", short).groups()
        assert whole.startswith(head) and whole.endswith(tail) and int(note.replace(",", "")) == 1000 - len(head) - len(tail)
        assert len(head) - len(tail) in (0, 1) and len(short) >= room * 0.97 - 1
