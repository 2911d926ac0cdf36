"""The tools of a coder: they read, change, find and run what stands at its desk. Results are short, and words are said so that
a small model can copy them (the leading space of an argument belongs to it as in the text it is copied from)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from trivium.agents.coder import todo as lists
from trivium.agents.coder.desk import desk_of, shown
from trivium.agents.coder.fetch import fetch_tool
from trivium.agents.coder.find import lines_of, matches, passages
from trivium.corpus import Embedder
from trivium.harness import Scene, Tool, ToolError, tool

BRIEF = (
    "Change the code as asked. Tools: read_file(path, start, end), edit_file(path, old, new), write_file(path, text), "
    "list_files(), grep(pattern), search_code(query), run(command), todo(add, done). Say Done. at the end."
)
"""The system prompt of a nano model, which learns the tools' use from its warm-up."""

PROMPT = """\
You are a coding agent. You are given a project and a request; change the project's files so that the request is fulfilled.
Look before you change: list, grep, search and read, several calls at once where they do not depend on each other.
Change a file with edit_file: give the old text exactly as it stands in the file, with as many lines as make it unique.
Run the project's own tests where it has some. Write down with todo what you will do later, and tick it off when it is done.
Do not think in comments of the code. When the request is fulfilled, say so in one sentence, without a call."""
"""The system prompt of a model that reads instructions (the words are ours)."""

PAGE = 60
"""Lines that read_file shows where no range is asked for."""

SHOWN = 1_200
"""Letters of a command's output; what is longer is cut in its middle."""

LISTED, FOUND = 100, 20
SECONDS = 60.0
"""How long one command may take."""

Path = Annotated[str, Meta(description="a file of the project, such as src/cart.py")]


@tool
async def list_files(scene: Scene) -> str:
    """List the files of the project."""
    paths = [shown(path) for path in await desk_of(scene).sizes()]
    more = [f"({len(paths) - LISTED} more)"] if len(paths) > LISTED else []
    return "\n".join([*(f"- {path}" for path in paths[:LISTED]), *more]) or "There is no file."


@tool
async def read_file(scene: Scene, path: Path, start: int = 1, end: int = 0) -> str:
    """Read a file, or its lines from start to end."""
    desk, path = desk_of(scene), path.strip()
    lines = lines_of(await desk.text(path))
    if start < 1 or start > max(1, len(lines)) or (end and end < start):
        raise ToolError(f"{path} has {len(lines)} lines, and none from {start} to {end or len(lines)}.")
    last = min(end or start + PAGE - 1, len(lines))
    part = lines[start - 1 : last]
    whole = len(part) == len(lines)
    return "\n".join([*part, *([] if whole else [f"[lines {start}-{last} of {len(lines)}]"])]) or f"{path} is empty."


@tool
async def edit_file(scene: Scene, path: Path, old: str, new: str) -> str:
    """Replace a text that stands exactly once in a file by another."""
    desk, path = desk_of(scene), path.strip()
    text = await desk.text(path)
    if not old:
        raise ToolError("the text to replace is empty: write_file makes a new file.")
    if old == new:
        raise ToolError("the new text is the old one: nothing would change.")
    count = text.count(old)
    if count == 0:
        raise ToolError(f"{path}: the text to replace is not there.")
    if count > 1:
        raise ToolError(f"{path}: the text to replace is there {count} times; give more of it.")
    await desk.write(path, text.replace(old, new))
    return f"Edited {path} at line {text[: text.index(old)].count(chr(10)) + 1}."


@tool
async def write_file(scene: Scene, path: Path, text: str) -> str:
    """Write a whole file, a new one or in place of what was there."""
    path = path.strip()
    await desk_of(scene).write(path, text)
    return f"Wrote {path}: {len(lines_of(text))} lines."


@tool
async def grep(scene: Scene, pattern: Annotated[str, Meta(description="a regular expression")]) -> str:
    """Find lines that match a regular expression, in all files."""
    desk = desk_of(scene)
    found = matches(pattern.strip(), await desk.texts())
    more = [f"({len(found) - FOUND} more)"] if len(found) > FOUND else []
    return "\n".join([*(f"- {line}" for line in found[:FOUND]), *more]) or "Nothing matches."


@tool
def todo(scene: Scene, add: list[str] = (), done: list[int] = ()) -> str:  # ty: ignore[invalid-parameter-default]
    """Write down things to do, and tick those off that are done, by their numbers."""
    every = lists.items(scene.calls)
    if strange := [number for number in done if not 1 <= number <= len(every) + len(add)]:
        raise ToolError(f"there is no to-do {strange[0]}; there are {len(every)}.")
    lists.add(every, add)
    lists.tick(every, done)
    return "\n".join(map(str, every)) or "Nothing to do."


@tool(seconds=2 * SECONDS)
async def run(scene: Scene, command: str) -> str:
    """Run a shell command at the top of the project."""
    if not command.strip():
        raise ToolError("the command is empty.")
    result = await desk_of(scene).run(command.strip(), SECONDS)
    first = f"stopped after {SECONDS:g} s" if result.timed_out else f"exit {result.code}"
    return f"{first}\n{middle_cut(result.output, SHOWN)}".rstrip()


def middle_cut(text: str, letters: int) -> str:
    """Text with its middle left out where it is longer, and a note of how much that is."""
    if len(text) <= letters:
        return text
    head, tail = text[: letters // 2], text[-(letters // 2) :]
    return f"{head}\n[{len(text) - len(head) - len(tail):,} letters left out]\n{tail}"


def search_tool(embedder: Embedder | None = None) -> Tool:
    """The tool that finds functions and classes by their meaning; without an embedder by their words alone."""

    @tool
    async def search_code(scene: Scene, query: Annotated[str, Meta(description="what the code does, in words")]) -> str:
        """Find functions and classes by what they do."""
        if not query.strip():
            raise ToolError("the query is empty.")
        found = passages(query.strip(), await desk_of(scene).texts(), embedder)
        return "\n\n".join(found) or "Nothing like it."

    return search_code


def coder_tools(embedder: Embedder | None = None, hosts: tuple[str, ...] = ()) -> list[Tool]:
    """All tools of a coder. `hosts` are those that fetch_url may reach; without any there is no such tool."""
    every = [read_file, edit_file, write_file, list_files, grep, search_tool(embedder), run, todo]
    return [*every, *([fetch_tool(hosts)] if hosts else [])]
