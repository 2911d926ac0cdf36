"""How a coder behaved, as numbers that a reward prices: small functions of an episode, each with the hack that it is for.

open_todos       items written down and left open (Composer 2's report, 4.2)
broken_calls     calls that failed by the policy's own doing: kept as negatives, never dropped (Cursor, real-time RL)
scratch          lines of comments among the lines added: reasoning hidden in the code (Composer 2's report, 4.2)
terminal_only    work done by the shell alone, with file tools at hand (Composer 2's report, 4.2)
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator

from trivium.agents.coder.todo import open_items
from trivium.trace import Call, Episode

FILE_TOOLS = frozenset({"read_file", "edit_file", "write_file", "list_files", "grep", "search_code"})
WRITERS = ("sed -i", "tee ", ">", "patch ", "perl -i", "write_text(", "open(")
"""What a command has in it that may write a file by the shell."""


def open_todos(episode: Episode) -> float:
    """How many to-do items were left open."""
    return float(len(open_items(episode.agent)))


def broken_calls(episode: Episode) -> float:
    """How many calls failed by the policy's own doing: unreadable, of no tool, with wrong arguments, refused."""
    return float(sum(call.fault in ("arguments", "timeout") for call in episode.agent.calls))


def scratch(episode: Episode) -> float:
    """Lines of comments beyond a third of the lines that its edits added: a few explain code, many are thoughts."""
    added = [line for call in _changes(episode) for line in _added(call)]
    comments = sum(_is_comment(line) for line in added)
    return max(0.0, comments - len(added) / 3)


def terminal_only(episode: Episode) -> float:
    """1 where files were changed by the shell and no file tool was ever used."""
    calls = [call for call in episode.agent.calls if not call.error]
    commands = [str(call.arguments.get("command", "")) for call in calls if call.name == "run"]
    wrote = any(mark in command for command in commands for mark in WRITERS)
    return float(wrote and not any(call.name in FILE_TOOLS for call in calls))


TERMS = {"open_todos": open_todos, "broken_calls": broken_calls, "scratch": scratch, "terminal_only": terminal_only}


def _changes(episode: Episode) -> Iterator[Call]:
    return (call for call in episode.agent.calls if call.name in ("edit_file", "write_file") and not call.error)


def _added(call: Call) -> list[str]:
    """The lines that a change put in and that it did not take out."""
    before = str(call.arguments.get("old", "")).splitlines()
    after = str(call.arguments.get("new", call.arguments.get("text", ""))).splitlines()
    return [line for line in after if line.strip() and line not in before]


def _is_comment(line: str) -> bool:
    """Whether a line of Python is nothing but a comment, or a string that stands alone."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(line.strip()).readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return line.strip().startswith(("#", '"""', "'''"))
    kinds = {token.type for token in tokens} - {tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}
    return kinds in ({tokenize.COMMENT}, {tokenize.STRING})
