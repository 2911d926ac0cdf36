"""The request of a task that is made from a commit: short and under-specified, from its message or in a model's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trivium.policy.base import Policy, View
from trivium.trace import Sampling

LONGEST = 390
"""Letters; the median of CursorBench's prompts."""

_REFERENCES = re.compile(
    r" ?\(?(?:(?:fix(?:e[sd])?|close[sd]?|resolve[sd]?|see|refs?|re)\s+)?(?:#|gh-)\d+\)?|https?://\S+", re.IGNORECASE
)
_TRAILERS = re.compile(r"^[A-Z][\w-]+-by: .*$", re.MULTILINE)
_EMPTY = re.compile(r"(?:merge|bump|release|version|wip|v?\d+\.\d|typo|changelog|revert)\b", re.IGNORECASE)
_ASK = """\
Here is the message of a commit and what it changed. Write the request that a busy programmer would have typed to get this:
one or two sentences, what is wanted and not how, no code, and no new name unless its tests need it.

Message:
{message}

Change:
{change}

Request:"""


def from_message(message: str) -> str:
    """The first sentence of a commit's message, and its first paragraph where that is short, without references, links and
    trailers; "" for a message that asks for nothing."""
    subject, _, body = _TRAILERS.sub("", message).strip().partition("\n")
    subject = _REFERENCES.sub("", subject).partition(". ")[0].strip(" .:-")  # a second sentence tells how
    if _EMPTY.match(subject):
        return ""
    words = [subject, _REFERENCES.sub("", body.strip().partition("\n\n")[0]) if len(subject) < 40 else ""]
    text = ". ".join(" ".join(part.split()) for part in words if part.strip())
    return text[:LONGEST].rsplit(" ", 1)[0] if len(text) > LONGEST else text if len(text.split()) >= 3 else ""


async def in_words_of(policy: Policy, message: str, change: str) -> str:
    """The request as a model writes it, from the message and the change; its first paragraph, without quotes around it."""
    question = {"role": "user", "content": _ASK.format(message=message[:2_000], change=change[:6_000])}
    view = View(policy.renderer.opening([question]), [question], [], (0, message[:40], 0, 0, 0))
    reply = await policy.speak(view, Sampling(max_tokens=200))
    said = policy.renderer.read(reply.message) if reply.message is not None else policy.renderer.parse(reply.tokens)
    return said.text.strip().partition("\n\n")[0].strip(" \"'\n")[:LONGEST]


def leaks(prompt: str, before: Mapping[str, str], change: Mapping[str, str | None]) -> list[str]:
    """What gives the change away, a sentence each: a changed line in the prompt, or the new lines elsewhere in the project."""
    new = [line.strip() for line in added_lines(before, change)]
    telling = {line for line in new if len(line) >= 20}
    found = [f"the prompt holds a changed line: {line:.60}" for line in telling if line in prompt]
    others = "\n".join(text for path, text in before.items() if path not in change)
    copied = [line for line in telling if line in others]
    if telling and len(copied) > 0.8 * len(telling):
        found.append(f"{len(copied)} of {len(telling)} new lines stand elsewhere in the project: {copied[0]:.60}")
    return found


def added_lines(before: Mapping[str, str], change: Mapping[str, str | None]) -> Iterable[str]:
    """The lines that the changed files hold and did not hold before."""
    for path, text in change.items():
        old = set(before.get(path, "").splitlines())
        yield from (line for line in (text or "").splitlines() if line.strip() and line not in old)
