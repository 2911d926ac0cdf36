"""A reply token by token: what a client hears is never taken back, whatever comes behind it."""

from __future__ import annotations

import pytest

from trivium.policy import Reply
from trivium.policy.scripted import call
from trivium.serve.text import Hearing, read


def heard(renderer, tokens, stops=()) -> tuple[list[str], Hearing]:
    """What is told at each token, up to a stop text."""
    hearing, told = Hearing(renderer, stops), []
    for token in tokens:
        told.append(hearing.hear([token]))
        if hearing.stopped:
            break
    return told, hearing


def said(renderer, tokens, stops=(), tools=True) -> tuple[str, dict, str]:
    """All that is told while it comes and at its end, the message, and how it ended."""
    told, hearing = heard(renderer, tokens, stops)
    done = read(Reply(hearing.tokens), hearing, renderer, "id", tools)
    return "".join(told) + hearing.end(done.message["content"]), done.message, done.finish


def test_text_is_told_letter_by_letter(renderer):
    told, _ = heard(renderer, renderer.encode("  two words "))
    assert "".join(told) == "two words" and told[2:5] == ["t", "w", "o"] and told[5] == ""


def test_a_letter_of_several_tokens_is_told_whole(renderer):
    told, _ = heard(renderer, renderer.encode("żółć!"))
    assert [each for each in told if each] == ["ż", "ó", "ł", "ć", "!"]


@pytest.mark.parametrize(
    "text, stops, told", [("abcdef", ("cde",), "ab"), ("abcd", ("x", "bc"), "a"), ("abcdcx", ("cdx",), "abcdcx")]
)
def test_nothing_of_a_stop_text_is_told(renderer, text, stops, told):
    whole, message, finish = said(renderer, renderer.encode(text), stops)
    assert whole == message["content"] == told and finish == ("stop" if told != text else "length")


def test_calls_are_no_text_and_text_before_them_is(renderer):
    tokens = renderer.reply(call(("add", {"a": 1}), ("add", {"a": 2}), text="Look:"))
    whole, message, finish = said(renderer, tokens)
    assert whole == message["content"] == "Look:" and finish == "tool_calls"
    assert [each["id"] for each in message["tool_calls"]] == ["call_id_0", "call_id_1"]


def test_calls_that_nobody_offered_and_calls_that_are_none_are_text(renderer):
    tokens = renderer.reply(call(("add", {"a": 1}), text="Look:"))
    for part, tools in ((tokens, False), (tokens[:-20], True)):
        whole, message, finish = said(renderer, part, tools=tools)
        assert whole == message["content"] and "<tool_call>" in whole and "tool_calls" not in message and finish != "tool_calls"
