"""A reply as it is read: its text while it comes, and its message at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trivium.policy import Renderer, Reply
from trivium.policy.message import Message
from trivium.policy.render import Speech, ToolCall
from trivium.serve.sessions import CALL

_CALLS = ("{", "[", "<")
"""How a tool call begins in dialects that have no control token for it."""
_HALF = "\ufffd"  # what a letter is decoded to of which some bytes are still to come


class Hearing:
    """Listens to one reply. Text is handed out as soon as it is certain to be what the client will be told at the end: what may
    be a part of a tool call, of a thought or of a stop text is held back."""

    def __init__(self, renderer: Renderer, stops: Sequence[str]) -> None:
        self._renderer, self._stops = renderer, stops
        self.tokens: list[int] = []
        self._text, self._told = "", 0  # without white space before it, and how many letters of it the client has
        self._read = self._start = 0
        self._held = max((len(stop) - 1 for stop in stops), default=0)
        self._holds = not _speaks_plainly(renderer)
        self.stopped = False

    def hear(self, tokens: Sequence[int]) -> str:
        """The text that is certain now and was not before."""
        self.tokens += tokens
        self._holds = self._holds or not self._renderer.tokenizer.control.isdisjoint(tokens)
        self._decode()
        self._holds = self._holds or self._text.startswith(_CALLS)
        if self._holds or self.stopped:
            return ""
        new = self._text[self._told : len(self._text) - self._held].rstrip()
        self._told += len(new)
        return new

    def end(self, text: str) -> str:
        """What is left of `text`, all that the reply says. Nothing, where a dialect reads its words otherwise at the end than
        the client has heard them."""
        return text[self._told :] if text.startswith(self._text[: self._told]) else ""

    def cut(self, text: str) -> str:
        """A reply's text as far as its first stop text."""
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else text

    def _decode(self) -> None:
        """Append the letters that are whole, each decoded behind the ones before it, as some vocabularies need."""
        before = self._renderer.decode(self.tokens[self._start : self._read])
        text = self._renderer.decode(self.tokens[self._start :])
        if len(text) <= len(before) or text.endswith(_HALF):
            return
        new = text[len(before) :]
        self._text += new if self._text else new.lstrip()
        self._start, self._read = self._read, len(self.tokens)
        tail = self._text[-len(new) - self._held :]
        self.stopped = self.stopped or any(stop in tail for stop in self._stops)


@dataclass(frozen=True, slots=True)
class Said:
    """A reply, read: the message as the client gets it, and how it ended."""

    message: Message
    finish: str


def read(reply: Reply, hearing: Hearing, renderer: Renderer, id: str, tools: bool) -> Said:
    """What `reply`, the whole of it, says in the exchange `id`. Calls that cannot be read, or that nobody offered `tools` for,
    are text."""
    if reply.message is not None:
        speech, over = renderer.read(reply.message), reply.complete
    else:
        speech = renderer.parse(reply.tokens)
        over = bool(reply.tokens) and reply.tokens[-1] in renderer.stop_tokens
    calls = [call for call in speech.calls if tools and not call.error]
    text = hearing.cut(speech.text if calls or not speech.calls else _raw(speech, reply, renderer))
    message: Message = {"role": "assistant", "content": text}
    if thoughts := speech.message.get("reasoning_content") or speech.message.get("reasoning"):
        message["reasoning_content"] = thoughts
    if calls and not hearing.stopped:
        message["tool_calls"] = [_call(f"{CALL}{id}_{number}", call) for number, call in enumerate(calls)]
        return Said(message, "tool_calls")
    return Said(message, "stop" if over or hearing.stopped else "length")


def _raw(speech: Speech, reply: Reply, renderer: Renderer) -> str:
    """A reply word for word, its stop token left out."""
    if reply.message is not None:
        return speech.text
    tokens = list(reply.tokens)
    while tokens and tokens[-1] in renderer.stop_tokens:
        tokens.pop()
    return renderer.decode(tokens).strip()


def _call(id: str, call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


@lru_cache(16)
def _speaks_plainly(renderer: Renderer) -> bool:
    """Whether words that a model of this dialect begins with are what it says, and not what it thinks."""
    return renderer.parse(renderer.encode("x")).text == "x"
