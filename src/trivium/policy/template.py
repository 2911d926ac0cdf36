"""Any chat model's dialect, written by its own Jinja template.

What the template does is measured when it is loaded, on probe conversations: whether it shows tools and in which form it writes
calls, whether it hears a system message and results, what ends a turn, and whether rendering one more turn keeps what stood
before. It has as much of `renderers`' interface as policy/render.py asks for.

A template that knows no tools gets their schemas in the system message. Calls are then written as Hermes writes them, in tokens
that the vocabulary has, and results come in a user's turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from trivium.errors import InputError, Unsupported
from trivium.policy.families import FORMS, HERMES, Form, call_id, in_json, taught, thoughts_apart
from trivium.policy.message import Message
from trivium.policy.tokens import Tokenizer

if TYPE_CHECKING:
    from renderers.base import ParsedResponse, RenderedTokens

_SLOT = re.compile('\udffd(\\d+)\\\\?"\udffe')
"""Where a result stands in a rendered probe; the quotation mark in it has a stroke before it in a template that quotes JSON.
Its letters are halves of surrogate pairs, as MARK is: nobody's text holds one."""
_SAID = "\udffc"  # another one, for what a policy said
_QUESTION: Message = {"role": "user", "content": "x"}
PROBE: Message = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string", "description": "What."}}, "required": ["q"]},
    },
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """What decides how a template goes on: how many calls a reply has, whether it holds thoughts, whether earlier ones did."""

    calls: int = 0
    thinks: bool = False
    thought: bool = False


class TemplateDialect:
    """The dialect of a tokenizer's own chat template. `stops` are tokens that end a reply, beside the template's own.

    `quotes` says that it shows results within a JSON string. Raises InputError for a tokenizer without a template, a template
    that is broken, or one whose turns no token ends; Unsupported for calls in a form that nobody here reads.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise InputError("it has no chat template: it is a base and no chat model, so name one, or add chat_template.jinja")
        self._check_template()
        self.shows_tools = "probe" in (self._tried([_QUESTION], [PROBE]) or "")
        self._hears_system = _SAID in (self._tried([{"role": "system", "content": _SAID}, _QUESTION]) or "")
        self._pairs_up = self._tried([_QUESTION, _QUESTION]) is None  # a user's two turns are one
        self._native: Native | None = None
        self._form, self._hears_results, self.quotes = HERMES, False, False
        self._measure_calls()
        self._end, number = self._end_of_turn()
        eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self._stops = list(dict.fromkeys([number, *eos, *stops]))
        self._opens_thoughts = self._text([_QUESTION]).rstrip().endswith("<think>")
        self._tail = lru_cache(256)(self._measured)

    # --- what Renderer asks for

    def get_stop_token_ids(self) -> list[int]:
        return self._stops

    def render_ids(self, messages: Sequence[Message], *, tools=None, add_generation_prompt: bool = False) -> list[int]:
        """InputError where the template refuses these messages."""
        try:
            text = self._text(self._rows(messages, tools or ()), tools or () if self.shows_tools else (), add_generation_prompt)
        except Exception as error:  # a template can raise whatever it likes
            raise InputError(f"the chat template refuses these messages: {_reason(error)}") from error
        return self.tokenizer.encode(text, add_special_tokens=False)

    def render(self, messages: Sequence[Message]) -> RenderedTokens:
        """The tokens that the assistant would have sampled in `messages`; what others say is left out."""
        from renderers.base import RenderedTokens

        said = [self._said(message) + self._end for message in messages if message["role"] == "assistant"]
        tokens = [token for text in said for token in self.tokenizer.encode(text, add_special_tokens=False)]
        return RenderedTokens(token_ids=tokens, sampled_mask=[True] * len(tokens))

    def bridge_to_next_turn(self, prompt: list[int], reply: list[int], messages: Sequence[Message]) -> RenderedTokens | None:
        """What follows, one token in the place of each `slot`; None where the template would have to render anew."""
        from renderers.base import RenderedTokens

        parsed = self.parse_response(reply)
        earlier = any(token in prompt for token in self._think_tokens())
        kind = _Kind(len(parsed.tool_calls), bool(parsed.reasoning_content), earlier)
        tail = self._tail(kind, json.dumps([_slotted(message, number) for number, message in enumerate(messages)]))
        if tail is None:
            return None
        closing = [] if reply and reply[-1] in self._stops else [self._stops[0]]
        tokens, indices = [*prompt, *reply, *closing], [-1] * (len(prompt) + len(reply) + len(closing))
        for number, part in enumerate(_SLOT.split(tail)):
            added = [0] if number % 2 else self.tokenizer.encode(part, add_special_tokens=False) if part else []
            tokens += added
            indices += [int(part) if number % 2 else -1] * len(added)
        return RenderedTokens(token_ids=tokens, message_indices=indices, is_content=[index >= 0 for index in indices])

    def parse_response(self, tokens: Sequence[int]) -> ParsedResponse:
        """Thoughts, text and calls of a reply."""
        from renderers.base import ParsedResponse

        tokens = list(tokens)
        while tokens and tokens[-1] in self._stops:
            tokens.pop()
        thoughts, text = thoughts_apart(self.tokenizer.spelled(tokens))
        said, calls = self._form.find(text)
        return ParsedResponse(self.tokenizer.unmark(said), self.tokenizer.unmark(thoughts), calls)

    # --- what it writes

    def _said(self, message: Message) -> str:
        """A reply as this model writes it, without its end."""
        thoughts, text = message.get("reasoning_content") or "", message.get("content") or ""
        if thoughts:
            text = f"{'' if self._opens_thoughts else '<think>'}\n{thoughts}\n</think>\n\n{text}"
        calls = self._form.write(message.get("tool_calls") or ())
        return f"{text}\n{calls}" if text and calls else text + calls

    def _rows(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> list[Message]:
        """`messages` as the template can be given them: what it does not know is said in what it knows."""
        rows: list[Message] = []
        if tools and not self.shows_tools:
            first = messages[0] if messages and messages[0]["role"] == "system" else None
            text = "\n\n".join(filter(None, [first["content"] if first else "", taught(tools, self._form)]))
            messages = [{"role": "system", "content": text}, *messages[bool(first) :]]
        results = 0
        for message in messages:
            results = results + 1 if message["role"] == "tool" else 0
            rows.append(self._row(message, results - 1))
        if rows and rows[0]["role"] == "system" and not self._hears_system:
            rows = [{"role": "user", "content": rows[0]["content"]}, *rows[1:]]
        return _joined(rows, self._pairs_up or not self._hears_system, not self._hears_results)

    def _row(self, message: Message, number: int) -> Message:
        role, content = message["role"], message.get("content") or ""
        if role == "assistant":
            calls = message.get("tool_calls") if self._native else None
            if not calls:
                return {"role": role, "content": self._said(message)}
            given = [{"id": call_id(at), "type": "function", "function": call["function"]} for at, call in enumerate(calls)]
            return {"role": role, "content": content, "tool_calls": given}
        if role != "tool":
            return {"role": role, "content": content}
        if not self._hears_results:
            return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>", "result": True}
        return {"role": "tool", "name": message.get("name", ""), "tool_call_id": call_id(number), "content": content}

    def _text(self, rows: Sequence[Message], tools: Sequence[Message] = (), prompt: bool = True) -> str:
        """The template's own words. Raises whatever it raises."""
        return self.tokenizer.apply_chat_template(
            list(rows), tools=list(tools) or None, add_generation_prompt=prompt, tokenize=False
        )

    # --- what is measured

    def _tried(self, rows: Sequence[Message], tools: Sequence[Message] = ()) -> str | None:
        try:
            return self._text(rows, tools)
        except Exception:  # a template can raise whatever it likes
            return None

    def _check_template(self) -> None:
        try:
            text = self._text([{"role": "user", "content": _SAID}])
        except Exception as error:  # a template can raise whatever it likes
            raise InputError(f"its chat template cannot be rendered: {_reason(error)}; mend chat_template.jinja") from error
        if _SAID not in text:
            raise InputError("its chat template leaves out what a user says: mend chat_template.jinja")

    def _measure_calls(self) -> None:
        """The form of this template's calls: the one that it writes, or, where transformers cannot give it any (DeepSeek's asks
        for a content that is None), the one whose marks stand in it."""
        for way, count, form in ((way, count, form) for way in (_plain, _quoted) for count in (2, 1) for form in FORMS):
            call = self._turn(_Kind(count))
            written = self._tried([_QUESTION, way(call)], self._shown)
            if written is not None and _squeezed(form.write(call["tool_calls"])) in _squeezed(written):
                return self._take(form, call, way)
        for form in FORMS:
            if form.around[0] and form.around[0] in str(self.tokenizer.chat_template):
                return self._take(form, self._turn(_Kind(1)), None)
        if self.shows_tools:
            raise Unsupported("its chat template writes tool calls in a form that nobody here reads: serve it by vLLM")

    def _take(self, form: Form, call: Message, way: Native | None) -> None:
        """Speak in `form`. What we write in it, the template mostly renders as what it writes itself; where it does not
        (Mistral's counts turns), it writes calls."""
        self._form = form
        result = {"role": "tool", "name": "probe", "tool_call_id": call_id(0), "content": '"\ue003'}
        ours = self._tried([_QUESTION, {"role": "assistant", "content": self._said(call)}, result], self._shown)
        theirs = self._tried([_QUESTION, way(call), result], self._shown) if way else None
        self._native = way if theirs is not None and _squeezed(theirs) != _squeezed(ours or "") else None
        shown = theirs if self._native else ours
        self._hears_results, self.quotes = "\ue003" in (shown or ""), '\\"\ue003' in (shown or "")

    @property
    def _shown(self) -> Sequence[Message]:
        return [PROBE] if self.shows_tools else []

    def _end_of_turn(self) -> tuple[str, int]:
        """The control token behind what an assistant said, as letters and as its number."""
        text = self._tried(self._rows([_QUESTION, {"role": "assistant", "content": _SAID}, _QUESTION])) or ""
        rest = text.rpartition(_SAID)[2].lstrip()
        if (found := self.tokenizer.first_control(rest)) is None or not rest.startswith(found[0]):
            raise InputError(
                "no token of its vocabulary ends an assistant's turn in its chat template: a policy could not stop"
            )
        return found

    def _think_tokens(self) -> list[int]:
        number = self.tokenizer.number_of("</think>")
        return [] if number is None else [number]

    def _turn(self, kind: _Kind) -> Message:
        """A probe's reply of this kind."""
        function = {"name": "probe", "arguments": {"q": _SAID}}
        calls = [{"id": call_id(at), "type": "function", "function": function} for at in range(kind.calls)]
        said: Message = {"role": "assistant", "content": "" if calls else _SAID}
        if calls:
            said["tool_calls"] = calls
        return {**said, "reasoning_content": "y"} if kind.thinks else said

    def _measured(self, kind: _Kind, messages: str) -> str | None:
        """The text behind a reply of this `kind` once `messages` have come, up to where the next begins, where the template
        keeps all that stood before, with tools and without; else None."""
        news = json.loads(messages)
        tails = {self._tail_of(kind, news, tools) for tools in ((), self._shown)}
        return tails.pop() if len(tails) == 1 else None

    def _tail_of(self, kind: _Kind, news: list[Message], tools: Sequence[Message]) -> str | None:
        past: list[Message] = [_QUESTION]
        if kind.thought:
            result = {"role": "tool", "tool_call_id": call_id(0), "name": "probe", "content": "x"}
            past += [{**self._turn(_Kind(1, True))}, result]
        reply = self._turn(kind)
        before, after = (self._tried(self._rows(rows), tools) for rows in (past, [*past, reply, *news]))
        if before is None or after is None or not after.startswith(before):
            return None
        end = after.find(self._end, after.rfind(_SAID, len(before)))
        if end < 0 or _squeezed(after[len(before) : end]) != _squeezed(self._said(reply)):
            return None
        return after[end + len(self._end) :]


Native = Callable[[Message], Message]
"""A message with calls as a template wants it, to write the calls itself."""


def _plain(message: Message) -> Message:
    """As transformers has it: arguments as a dict."""
    calls = [{"id": call_id(at), "type": "function", "function": each["function"]} for at, each in enumerate(_calls(message))]
    return {"role": "assistant", "content": message.get("content") or "", "tool_calls": calls}


def _quoted(message: Message) -> Message:
    """As the API has it: arguments as a JSON string, and no content where nothing was said."""
    functions = [{**call["function"], "arguments": in_json(call["function"]["arguments"])} for call in _calls(message)]
    calls = [{"id": call_id(at), "type": "function", "function": each} for at, each in enumerate(functions)]
    return {"role": "assistant", "content": message.get("content") or None, "tool_calls": calls}


def _calls(message: Message) -> Sequence[Message]:
    return message["tool_calls"]


def _slotted(message: Message, number: int) -> Message:
    """A result that has pieces with a slot in their place, for the template to place."""
    return {**message, "content": f'\udffd{number}"\udffe'} if message.get("slot") else message


def _joined(rows: list[Message], users: bool, results: bool) -> list[Message]:
    """Neighbours in one turn: all of a user's where `users` have to take turns, and results that come as a user's."""
    joined: list[Message] = []
    for row in rows:
        last = joined[-1] if joined else None
        both = last is not None and last["role"] == row["role"] == "user"
        if last is not None and both and (users or results and last.get("result") and row.get("result")):
            joined[-1] = {**last, "content": f"{last['content']}\n{row['content']}"}
        else:
            joined.append(row)
    return [{key: value for key, value in row.items() if key != "result"} for row in joined]


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]
