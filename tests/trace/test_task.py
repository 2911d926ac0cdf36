"""What a task may say, and what is refused by name."""

from __future__ import annotations

import msgspec
import pytest
import zstandard

from trivium.errors import CorruptError, InputError
from trivium.trace import Call, Episode, Task, Thread, decode, encode

UNNAMED, EMPTY = {"id": "c1", "function": {"arguments": {}}}, {"id": "c1", "function": {"name": "look"}}
FUNCTION = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"where": "here"}'}}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": None, "tool_calls": [FUNCTION]},
    {"role": "tool", "content": "In the box.", "tool_call_id": "c1"},
    {"role": "assistant", "content": "In the box.", "reasoning_content": "The tool says so."},
]


def test_a_conversation_before_the_prompt_comes_back_from_bytes():
    task = Task("t", "And the key?", {"answer": "box"}, TALK, ["look"])
    assert decode(encode(Episode("e", task))).task == task
    assert Task("t", "And the key?") == Task("t", "And the key?", {}, [], [])


def nested(depth: int) -> dict:
    """So many dicts in one another."""
    return {"a": nested(depth - 1) if depth > 1 else 1}


def deeper(frames: int, data: bytes) -> Episode:
    """What `decode` makes of `data` so far down the stack."""
    return deeper(frames - 1, data) if frames else decode(data)


def test_what_is_written_can_be_read_wherever_somebody_reads():
    episode = Episode("e", Task("t", "?", nested(200), [TALK[0] | {"deep": nested(198)}, TALK[1]]))
    assert deeper(500, encode(episode)) == episode
    caller = Thread("0", "p", calls=[Call("c", 0, "look", nested(201))])
    for deep in (Episode("e", Task("t", "?", nested(201))), Episode("e", Task("t", "?"), threads=[caller])):
        with pytest.raises(InputError, match="episode e cannot be stored .more than 200 lists and dicts in one another"):
            encode(deep)


def test_bytes_that_are_nested_without_end_are_torn():
    head, body = encode(Episode("e", Task("t", "?")))[:5], msgspec.msgpack.encode(Episode("e", Task("t", "?", {"a": "END"})))
    deep = body.replace(msgspec.msgpack.encode("END"), b"\x91" * 100_000 + b"\xc0")
    with pytest.raises(CorruptError, match="a stored episode is torn"):
        decode(head + zstandard.ZstdCompressor().compress(deep))


def test_a_conversation_that_ends_with_its_user_needs_no_prompt():
    asked = [*TALK, {"role": "user", "content": "And the key?"}]
    assert decode(encode(Episode("e", Task("t", "", messages=asked)))).task.messages == asked
    for end in range(1, len(asked)):
        if asked[end - 1]["role"] != "user":
            with pytest.raises(InputError, match="task t has no prompt, so its messages must end with one of role user"):
                Task("t", "", messages=asked[:end])


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ("Where is it?", "a dict with a role"),
        ({"content": "Where is it?"}, "a dict with a role"),
        ({"role": "robot", "content": "Where is it?"}, "a dict with a role of system, user, assistant, tool"),
        ({"role": ["user"], "content": "Where is it?"}, "a dict with a role"),
        ({"role": "user"}, "content of a message is text"),
        ({"role": "user", "content": [{"type": "text", "text": "Where?"}]}, "content of a message is text"),
        ({"role": "assistant", "content": None}, "content of a message is text"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content of a message is text"),
        ({"role": "assistant", "content": 7, "tool_calls": [FUNCTION]}, "content of a message is text"),
        ({"role": "user", "content": "x", "tool_calls": [FUNCTION]}, "an assistant's list"),
        ({"role": "assistant", "content": "", "tool_calls": FUNCTION}, "an assistant's list"),
        ({"role": "assistant", "content": "", "tool_calls": ["look"]}, "an assistant's list"),
        ({"role": "assistant", "content": "", "tool_calls": [FUNCTION | {"id": 1}]}, "an assistant's list"),
        ({"role": "assistant", "content": "", "tool_calls": [EMPTY]}, "an assistant's list"),
        ({"role": "assistant", "content": "", "tool_calls": [UNNAMED]}, "an assistant's list"),
        ({"role": "tool", "content": "In the box."}, "names the call that it answers"),
    ],
)  # fmt: skip
def test_a_message_that_no_chat_has_is_named_with_its_place(message, rule):
    with pytest.raises(InputError, match=f"task t: .*{rule}.*, and its message 1 is "):
        Task("t", "?", messages=[TALK[0], message])


@pytest.mark.parametrize("change", [{"messages": "Where?"}, {"messages": None}, {"tools": "look"}, {"tools": [len]}])
def test_lists_are_lists(change):
    with pytest.raises(InputError, match=f"task t: its {next(iter(change))} are a list"):
        Task("t", "?", **change)
