"""Messages <-> tokens, for one model's dialect. Stands on the `renderers` package, which writes each chat template by hand.

What `renderers` has not: tool results are tokenised piece by piece, so that a prune can remove whole spans and render
nothing again (law 2). We let it render a one-word result, and put the tokens of our pieces in that word's place.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from trivium.errors import InputError, Unsupported
from trivium.files import vocabulary
from trivium.policy.message import Message
from trivium.trace import Piece

_WORD = "x"  # stands for a result while the template is rendered; a letter never merges with the newlines around it
_QUESTION = {"role": "user", "content": _WORD}


@dataclass(frozen=True, slots=True)
class Asked:
    """One tool call as a reply asked for it; `error` says why it cannot be read, empty if it can."""

    name: str
    arguments: dict[str, Any]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """A reply, parsed: text, and the calls it asked for in order."""

    text: str
    calls: tuple[Asked, ...] = ()


Placed = tuple[list[int], Piece | None]
"""Tokens to append, and the piece that they show (None: template)."""


class Renderer:
    """One model's dialect. Load it from a model folder (or a name in the local Hugging Face cache)."""

    def __init__(self, tokenizer, dialect) -> None:
        self.tokenizer = tokenizer
        self._dialect = dialect
        self.stop_tokens: tuple[int, ...] = tuple(dialect.get_stop_token_ids())
        added = sorted((str(token) for token in tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, added)) or r"(?!)")
        self.encode = lru_cache(1 << 16)(self._encode)
        self._bridge = lru_cache(64)(self._bridged)  # a harness asks how long a continuation is, and then for it
        self._check_bridge()

    @classmethod
    def load(cls, model: str | Path) -> Renderer:
        """InputError if there is no tokenizer at `model`; Unsupported if nobody knows its template, or it can never be
        continued. `renderers` knows models by name; a folder has none, and is taken for a Qwen 3 if its template is that."""
        tokenizer = load_tokenizer(model)
        try:
            return cls(tokenizer, _dialect(tokenizer, model))
        except Exception as error:  # as many as there are templates that are none
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise Unsupported(
                f"no dialect is known for {str(model)!r} ({reason}); a folder that was saved from a model of another name: "
                f"load the renderer by that name, and hand it on (`renderer=`)"
            ) from error

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def plain(self, text: str) -> str:
        """Text that a policy is shown as it came from elsewhere: what would be a control token of this dialect, and so could
        end a turn or forge one, is broken by a space; half a surrogate pair becomes a question mark."""
        return self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text.encode(errors="replace").decode())

    def opening(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> list[int]:
        """The tokens of a context's first messages, up to where the policy begins to speak."""
        return self._dialect.render_ids(list(messages), tools=list(tools) or None, add_generation_prompt=True)

    def continuation(self, prompt: Sequence[int], reply: Sequence[int], results: Sequence[Message]) -> list[Placed] | None:
        """What stands between `reply` and the next one: the template's tokens, and each result's pieces in their places.

        `results` are messages of role tool with `pieces` instead of content, or of role user with `content`. None when
        this template has to render the past again, which the harness records as a Restart.
        """
        bridged = self._bridge(tuple(prompt), tuple(reply), json.dumps([_shown(result) for result in results]))
        if bridged is None or bridged.token_ids[: len(prompt) + len(reply)] != [*prompt, *reply]:
            return None
        return self._place(bridged, len(prompt) + len(reply), results)

    def _bridged(self, prompt: tuple[int, ...], reply: tuple[int, ...], shown: str):
        return self._dialect.bridge_to_next_turn(list(prompt), list(reply), json.loads(shown))

    def _place(self, bridged, start: int, results: Sequence[Message]) -> list[Placed]:
        placed: list[Placed] = []
        template: list[int] = []
        for position in range(start, len(bridged.token_ids)):
            index = bridged.message_indices[position]
            pieces = results[index].get("pieces") if index >= 0 and bridged.is_content[position] else None
            if pieces is None:
                template.append(bridged.token_ids[position])
                continue
            placed.append((template, None))
            placed += [(list(self.encode(piece.text)), piece) for piece in pieces]
            template = []
        return [*placed, (template, None)]

    def parse(self, tokens: Sequence[int]) -> Said:
        """A reply's tokens as text and calls. A call that cannot be read carries its error; nothing is dropped."""
        try:
            parsed = self._dialect.parse_response(list(tokens))
        except (RecursionError, ValueError) as error:  # brackets by the thousand, a number of five thousand digits
            return Said(self.decode(tokens), (Asked("", {}, f"this tool call cannot be read ({type(error).__name__})"),))
        return Said(parsed.content.strip(), tuple(_asked(call) for call in parsed.tool_calls))

    def reply(self, message: Message) -> list[int]:
        """The tokens a policy of this dialect would have sampled to say `message`, its stop token included."""
        # a question after it keeps templates from adding the empty thoughts that they add to a last message, but takes
        # its own thoughts away
        thoughts = message.get("reasoning_content") or "</think>" in (message.get("content") or "")
        rendered = self._dialect.render([_QUESTION, _readable(message), *([] if thoughts else [_QUESTION])])
        return [token for token, sampled in zip(rendered.token_ids, rendered.sampled_mask, strict=True) if sampled]

    def _check_bridge(self) -> None:
        """A dialect that never continues a context would restart at every turn: an error at start, not a slow surprise."""
        prompt = self.opening([_QUESTION])
        result = {"role": "tool", "tool_call_id": "0", "pieces": [Piece(_WORD)]}
        placed = self.continuation(prompt, [self.stop_tokens[0]], [result])
        if placed is None or not any(piece for _, piece in placed):
            raise Unsupported(f"the renderer {type(self._dialect).__name__} cannot continue a context after a tool result")


def load_tokenizer(model: str | Path):
    """The tokenizer in a model folder, or of a model in the local cache. InputError if there is none."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer

    try:
        if Path(model).is_dir() and not vocabulary(Path(model)):
            raise InputError("it has no tokenizer.json and no vocabulary")
        return AutoTokenizer.from_pretrained(str(model), local_files_only=True)
    except Exception as error:  # there are as many ways to be no tokenizer as fields in its files
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise InputError(f"no model at {str(model)!r}: give a folder with config.json and tokenizer.json ({reason})") from error


def _dialect(tokenizer, model: str | Path):
    """Who writes the chat template of `model`, for `Renderer.load`."""
    from renderers import Qwen3RendererConfig, create_renderer
    from renderers.base import MODEL_RENDERER_MAP

    named = MODEL_RENDERER_MAP.get(str(model))
    if named == "qwen3" or not named and _model_type(model) in ("qwen3", "qwen3_moe"):
        dialect, asked = create_renderer(tokenizer, Qwen3RendererConfig(thinking_retention="all")), _plainly(tokenizer)
        if asked in (None, dialect.render_ids([_QUESTION], add_generation_prompt=True)):
            return dialect
    return create_renderer(tokenizer)


def _plainly(tokenizer) -> list[int] | None:
    """A question as the model's own template has it; None where it has none."""
    if not tokenizer.chat_template:
        return None
    text = tokenizer.apply_chat_template([_QUESTION], add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(text, add_special_tokens=False)


def _model_type(model: str | Path) -> str:
    """As the model's configuration has it; "" where only a tokenizer is there."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(model), local_files_only=True).model_type
    except Exception:  # what is no configuration is the network's to refuse
        return ""


def _shown(result: Message) -> Message:
    """A result as the template is rendered with it: one word in the place of its pieces."""
    rest = {key: value for key, value in result.items() if key != "pieces"}
    return {**rest, "content": _WORD} if "pieces" in result else rest


def _readable(message: Message) -> Message:
    """A harness sees arguments as the API has them (a JSON string) or as a dict; a template wants the dict."""
    if not message.get("tool_calls"):
        return message
    calls = [dict(call["function"]) for call in message["tool_calls"]]
    for function in calls:
        if isinstance(function["arguments"], str):
            function["arguments"] = _loads(function["arguments"])
    return {**message, "content": message.get("content") or "", "tool_calls": [{"function": f} for f in calls]}


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # broken JSON stays broken: the policy's own doing, and its error to see


def _asked(call) -> Asked:
    name = call.name if isinstance(call.name, str) and _can_be_kept(call.name) else ""
    if call.status != "ok":
        return Asked(name, {}, f"this tool call cannot be read ({call.status.value.replace('_', ' ')})")
    if not isinstance(call.arguments, dict):
        return Asked(name, {}, "arguments must be a JSON object")
    if not name or not _can_be_kept(call.arguments):
        return Asked(name, {}, "this tool call cannot be read (a name that is none, a number too long, or half a character)")
    return Asked(name, call.arguments)


def _can_be_kept(said: Any) -> bool:
    """Whether a trace can hold it: JSON allows numbers and characters that no store does."""
    try:
        msgspec.msgpack.encode(said)
    except (OverflowError, UnicodeEncodeError, RecursionError):
        return False
    return True
