"""How model families write their tool calls, and how their writing is read.

A reply is read as letters in which each control token stands as itself, while text that only spells one is marked
(policy/tokens.py). A call that cannot be read is kept with its fault, and hides none behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trivium.policy.tokens import MARK

if TYPE_CHECKING:
    from renderers.base import ParsedToolCall


def thoughts_apart(text: str) -> tuple[str, str]:
    """What a model thought before its answer, and the rest. Thoughts stand in <think> and </think>; where the template has
    written the beginning, </think> stands on a line of its own."""
    begun = text.lstrip()
    if begun.startswith("<think>") and "</think>" in begun:
        thoughts, _, rest = begun.removeprefix("<think>").partition("</think>")
    elif "</think>" in (lines := text.split("\n")):
        at = lines.index("</think>")
        thoughts, rest = "\n".join(lines[:at]), "\n".join(lines[at + 1 :])
    else:
        return "", text
    return thoughts.strip("\n"), rest.lstrip("\n")


_JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Form:
    """One family's calls. `call` writes one, of its number in the turn, its name and its arguments in JSON; `between` stands
    between two, and `around` before the first and behind the last. `opener` ends where a call's JSON begins (its group `name`
    is the name, where that stands before), and so does `again`, which opens a call only directly behind another; `closer` must
    follow that JSON. A `bare` call stands between no marks: JSON that gives no arguments is an answer."""

    call: Callable[[int, str, str], str]
    opener: re.Pattern[str]
    closer: re.Pattern[str]
    between: str = "\n"
    around: tuple[str, str] = ("", "")
    again: re.Pattern[str] = re.compile(r"(?!)")
    bare: bool = False

    def write(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """`calls` as messages have them, their arguments a dict; broken ones, which are text, stay as they are."""
        if not calls:
            return ""
        functions = [call["function"] for call in calls]
        written = [self.call(number, each["name"], in_json(each["arguments"])) for number, each in enumerate(functions)]
        return self.around[0] + self.between.join(written) + self.around[1]

    def find(self, text: str) -> tuple[str, list[ParsedToolCall]]:
        """What was said beside the calls, and the calls in order."""
        said, calls, at = [], [], 0
        while opened := self.again.match(text, at) or self.opener.search(text, at):
            call, stop = self._read(text, opened)
            if call is None:  # an answer that begins as a call does
                said.append(text[at:stop])
            else:
                said.append(text[at : opened.start()])
                calls.append(call)
            at = stop
        return "".join([*said, text[at:]]), calls

    def _read(self, text: str, opened: re.Match[str]) -> tuple[ParsedToolCall | None, int]:
        """The call whose JSON begins at the end of `opened`, and where it ends; no call where its JSON is another thing."""
        from renderers.base import ParsedToolCall, ToolCallParseStatus

        begin = opened.end()
        try:
            _, stop = _JSON.raw_decode(text, begin)
            raw = text[begin:stop].replace(MARK, "")
            value = json.loads(raw)
        except (ValueError, RecursionError):  # brackets by the thousand, a number of five thousand digits
            return self._broken(text, begin)
        if self.bare and not isinstance(value.get("parameters", value.get("arguments")), dict):
            return None, stop
        if (closed := self.closer.match(text, stop)) is None:
            return self._broken(text, begin)
        name = opened.groupdict().get("name")
        if name is not None:
            return ParsedToolCall(raw, name.replace(MARK, "").strip(), value), closed.end()
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return ParsedToolCall(raw, status=ToolCallParseStatus.MISSING_NAME), closed.end()
        arguments = value.get("arguments", value.get("parameters", {}))
        return ParsedToolCall(raw, value["name"], arguments), closed.end()

    def _broken(self, text: str, begin: int) -> tuple[ParsedToolCall, int]:
        """A call that cannot be read reaches to its own end, or to the next call, whichever comes first."""
        from renderers.base import ParsedToolCall, ToolCallParseStatus

        closed = self.closer.search(text, begin)
        following = [found.start() for each in (self.opener, self.again) if (found := each.search(text, begin + 1))]
        status = ToolCallParseStatus.INVALID_JSON if closed else ToolCallParseStatus.UNCLOSED_BLOCK
        stop = min([closed.end() if closed else len(text), *following])
        return ParsedToolCall(text[begin:stop].replace(MARK, ""), status=status), max(stop, begin + 1)


def in_json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


HERMES = Form(
    lambda number, name, arguments: f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>',
    re.compile(r"<tool_call>\s*"),
    re.compile(r"\s*</tool_call>"),
)
LLAMA = Form(
    lambda number, name, arguments: f'{{"name": "{name}", "parameters": {arguments}}}',
    re.compile(r'(?:^|(?<=\n)|(?<=; ))(?:<\|python_tag\|>)?(?=\{\s*"name"\s*:)'),
    re.compile(r"\s*(?:; |(?=\n)|\Z)"),
    between="; ",
    bare=True,
)
MISTRAL = Form(
    lambda number, name, arguments: f'{{"name": "{name}", "arguments": {arguments}, "id": "{call_id(number)}"}}',
    re.compile(r"\[TOOL_CALLS\]\s*\[\s*"),
    re.compile(r"\s*(?:\]|(?=, \{))"),
    between=", ",
    around=("[TOOL_CALLS] [", "]"),
    again=re.compile(r'(?<=\}), (?=\{\s*"name"\s*:)'),
)
DEEPSEEK = Form(
    lambda number, name, arguments: (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
    ),
    re.compile(r"(?:<｜tool▁calls▁begin｜>)?<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^\n]*)\n```json\n"),
    re.compile(r"\s*```<｜tool▁call▁end｜>\s*(?:<｜tool▁calls▁end｜>)?"),
    around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)
FORMS = (HERMES, LLAMA, MISTRAL, DEEPSEEK)


def call_id(number: int) -> str:
    """The id of a turn's call by its number, for templates that show one: Mistral's wants nine letters."""
    return f"call{number:05d}"


def taught(tools: Sequence[Mapping[str, Any]], form: Form) -> str:
    """What a system message says of `tools` and of how to call them, where the template says nothing."""
    schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = form.write([{"function": {"name": "<name>", "arguments": "<arguments>"}}])
    return (
        "# Tools\n\nYou may call one or more functions. Their signatures stand within <tools></tools>:\n"
        f"<tools>\n{schemas}\n</tools>\n\nFor each call, write its name and its arguments, a JSON object, as here:\n{example}"
    )
