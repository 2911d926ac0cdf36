"""Messages <-> tokens, for one model's dialect: that of the `renderers` package, which writes chat templates by hand, where it
knows the model, and else the model's own template (policy/template.py).

What neither has: tool results are tokenised piece by piece, so that a prune can remove whole spans and render
nothing again (law 2). We let it render a one-word result, and put the tokens of our pieces in that word's place. And text of
messages is words: it reaches the template marked (policy/tokens.py), so that only the template writes control tokens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from trivium.errors import InputError, Unsupported
from trivium.files import model_inside, vocabulary
from trivium.policy.families import thoughts_apart
from trivium.policy.message import Message
from trivium.policy.template import PROBE, TemplateDialect
from trivium.policy.tokens import Tokenizer
from trivium.trace import Piece
from trivium.trace.codec import check_depth

_WORD = "x"  # stands for a result while the template is rendered; a letter never merges with the newlines around it
_QUESTION: Message = {"role": "user", "content": _WORD}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a reply; `error` says why it cannot be read, empty if it can."""

    name: str
    arguments: dict[str, Any]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Speech:
    """A reply, read: its text without white space at the ends, its message without calls, and its calls in order."""

    text: str
    message: Message
    calls: tuple[ToolCall, ...] = ()


Placed = tuple[list[int], Piece | None]
"""Tokens to append, and the piece that they show (None: template)."""


class Renderer:
    """One model's dialect. Load it from a model folder (or a name in the local Hugging Face cache). A `dialect` of `renderers`
    that is handed in has to be made of a `policy.tokens.Tokenizer`, such as another Renderer's `tokenizer`."""

    def __init__(self, tokenizer: Tokenizer, dialect: Any) -> None:
        if not isinstance(tokenizer, Tokenizer):
            raise InputError("make Renderer and dialect of one trivium.policy.tokens.Tokenizer, which wraps transformers' own")
        self.tokenizer = tokenizer
        self._dialect = dialect
        self._quotes = isinstance(dialect, TemplateDialect) and dialect.quotes
        self.stop_tokens: tuple[int, ...] = tuple(dialect.get_stop_token_ids())
        self.encode = lru_cache(1 << 16)(self._encode)
        self._bridge = lru_cache(64)(self._bridged)  # a harness asks how long a continuation is, and then for it
        self._check_bridge()
        self._check_words()

    @classmethod
    def load(cls, model: str | Path) -> Renderer:
        """InputError if there is no tokenizer at `model`, or it has no chat template, a broken one, no token that ends a
        turn, or tokens that the weights beside it have not. Unsupported for a template that can never be continued.
        `renderers` knows models by name; a folder has none, and its own template speaks, but for that of a Qwen 3 and
        gpt-oss."""
        tokenizer = load_tokenizer(model)
        _check_size(tokenizer, model)
        try:
            return cls(tokenizer, _dialect(tokenizer, model))
        except (InputError, Unsupported) as error:
            raise type(error)(f"{str(model)!r} is no chat model that can be used: {error}") from error
        except Exception as error:  # what `renderers` needs, and cannot have here
            reason = f"{type(error).__name__}: {error}".split("\n")[0]
            raise Unsupported(f"`renderers` cannot write what {str(model)!r} speaks ({reason}): name another model") from error

    def _encode(self, text: str) -> tuple[int, ...]:
        """The tokens of text as a result shows it."""
        return tuple(self.tokenizer.words(json.dumps(text, ensure_ascii=False)[1:-1] if self._quotes else text))

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def plain(self, text: str) -> str:
        """Text from elsewhere as a store and a tokenizer can hold it: half a surrogate pair becomes a question mark."""
        return text.encode(errors="replace").decode()

    def opening(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> list[int]:
        """The tokens of a context's first messages, up to where the policy begins to speak. No text in them, nor in `tools`,
        becomes a control token. InputError where one holds half a character."""
        marked, specs = self._marked([_readable(message) for message in messages]), self._marked(tools)
        return self._dialect.render_ids(marked, tools=specs or None, add_generation_prompt=True)

    def _marked(self, messages: Sequence[Message]) -> list[Message]:
        """Messages or tools whose text writes no control token."""
        try:
            return self.tokenizer.mark(messages)
        except UnicodeEncodeError as error:
            raise InputError(f"a message or a tool holds half a character ({error.object[error.start]!r}): clean it") from error

    def continuation(self, prompt: Sequence[int], reply: Sequence[int], results: Sequence[Message]) -> list[Placed] | None:
        """What stands between `reply` and the next one: the template's tokens, and each result's pieces in their places.

        `results` are messages of role tool with `pieces` instead of content, or with `content`, as users' have it and as a
        client sends it. None when this template has to render the past again, which the harness records as a Restart.
        InputError where a content holds half a character.
        """
        shown = self._marked([_shown(result) for result in results])
        bridged = self._bridge(tuple(prompt), tuple(reply), json.dumps(shown))
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

    def parse(self, tokens: Sequence[int]) -> Speech:
        """A reply's tokens as text and calls. A call that cannot be read carries its error; nothing is dropped."""
        try:
            parsed = self._dialect.parse_response(list(tokens))
        except (RecursionError, ValueError) as error:  # brackets by the thousand, a number of five thousand digits
            broken = ToolCall("", {}, f"this tool call cannot be read ({type(error).__name__})")
            return _speech(self.decode(tokens), "", [broken])
        return _speech(parsed.content.strip(), parsed.reasoning_content or "", [_parsed(call) for call in parsed.tool_calls])

    def read(self, message: Message) -> Speech:
        """What a text policy said, from its message alone: text and calls as `parse` gives them. What it thought is kept in the
        message, under the name that its server gave it. Raises KeyError, TypeError or ValueError for what is no message."""
        view: Message = {"role": "assistant", "content": _text(message.get("content"))}
        view |= {key: message[key] for key in ("reasoning_content", "reasoning") if message.get(key)}
        calls = tuple(_read(each["function"]) for each in message.get("tool_calls") or ())
        return Speech(_readable(view)["content"].strip(), view, calls)

    def reply(self, message: Message) -> list[int]:
        """The tokens a policy of this dialect would have sampled to say `message`, its stop token included."""
        # a question after it keeps templates from adding the empty thoughts that they add to a last message, but takes
        # its own thoughts away
        readable = self.tokenizer.mark(_readable(message))
        thoughts = readable.get("reasoning_content")
        rendered = self._dialect.render([_QUESTION, readable, *([] if thoughts else [_QUESTION])])
        return [token for token, sampled in zip(rendered.token_ids, rendered.sampled_mask, strict=True) if sampled]

    def _check_bridge(self) -> None:
        """A dialect that never continues a context would restart at every turn: an error at start, not a slow surprise."""
        prompt = self.opening([_QUESTION])
        result = {"role": "tool", "tool_call_id": "0", "pieces": [Piece(_WORD)]}
        turns: list[tuple[Sequence[int], Message]] = [([self.stop_tokens[0]], result)]
        if isinstance(self._dialect, TemplateDialect):
            call = {"function": {"name": _WORD, "arguments": {}}}
            turns = [(self.reply({"role": "assistant", "content": "", "tool_calls": [call]}), result)]
            turns.append((self.reply({"role": "assistant", "content": _WORD}), _QUESTION))
        if all(self.continuation(prompt, reply, [news]) is None for reply, news in turns):
            raise Unsupported(
                f"its chat template ({type(self._dialect).__name__}) cannot continue a context: it renders the past anew "
                f"whenever a turn comes; take out of it what depends on later turns, or name another model"
            )

    def _check_words(self) -> None:
        """A dialect made of another tokenizer knows no marks, and would write control tokens that a text spells."""
        control = self.tokenizer.control
        string = next((str(token) for number, token in self.tokenizer.added_tokens_decoder.items() if number in control), "")
        try:
            prompts = [self.opening([{"role": "user", "content": content}]) for content in (_WORD, _WORD + string)]
        except (TypeError, ValueError) as error:
            raise Unsupported(f"{type(self._dialect).__name__} has to be made of the Renderer's own tokenizer") from error
        words, spelled = ([token for token in prompt if token in control] for prompt in prompts)
        if words != spelled:
            raise Unsupported(f"the renderer {type(self._dialect).__name__} takes {string} in a text for a control token")


def load_tokenizer(model: str | Path) -> Tokenizer:
    """The tokenizer in a model folder, or of a model in the local cache. InputError if there is none."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer

    try:
        if Path(model).is_dir() and not vocabulary(Path(model)):
            raise InputError("it has no tokenizer.json and no vocabulary")
        return Tokenizer(AutoTokenizer.from_pretrained(str(model), local_files_only=True))
    except Exception as error:  # there are as many ways to be no tokenizer as fields in its files
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        what = f"give a folder with config.json and tokenizer.json ({reason}){model_inside(Path(model))}"
        raise InputError(f"no model at {str(model)!r}: {what}") from error


def _check_size(tokenizer: Tokenizer, model: str | Path) -> None:
    """A token beyond the weights' rows would be an index error in the middle of a run."""
    config = _config(model)
    rows = getattr(config, "vocab_size", None) if config else None
    if rows is not None and (highest := max(tokenizer.get_vocab().values(), default=-1)) >= rows:
        raise InputError(
            f"the tokenizer in {str(model)!r} has {highest + 1:,} tokens and the weights beside it {rows:,} rows: "
            f"they are not of one model, so fetch both again"
        )


def _dialect(tokenizer: Tokenizer, model: str | Path) -> Any:
    """Who writes the chat template of `model`, for `Renderer.load`."""
    from renderers import GptOssRendererConfig, Qwen3RendererConfig, create_renderer
    from renderers.base import MODEL_RENDERER_MAP

    named, config = MODEL_RENDERER_MAP.get(str(model)), _config(model)
    kind = getattr(config, "model_type", "")
    if named == "qwen3" or not named and kind in ("qwen3", "qwen3_moe"):
        dialect: Any = create_renderer(tokenizer, Qwen3RendererConfig(thinking_retention="all"))
        ours = dialect.render_ids([_QUESTION], tools=[PROBE], add_generation_prompt=True)
        if _rendered(tokenizer) in (None, ours):
            return dialect
    if kind == "gpt_oss" and not named:  # its turns are channels, which no message of ours can write
        return create_renderer(tokenizer, GptOssRendererConfig())
    return create_renderer(tokenizer) if named else TemplateDialect(tokenizer, _ends(model))


def _rendered(tokenizer: Tokenizer) -> list[int] | None:
    """A question beside a tool as the model's own template has it; None where it has no template."""
    if not tokenizer.chat_template:
        return None
    with suppress(Exception):  # TemplateDialect says what is wrong with it
        text = tokenizer.apply_chat_template([_QUESTION], tools=[PROBE], add_generation_prompt=True, tokenize=False)
        return tokenizer.encode(text, add_special_tokens=False)
    return []


def _config(model: str | Path) -> Any:
    """The model's configuration; None where only a tokenizer is there."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(model), local_files_only=True)
    except Exception:  # what is no configuration is the network's to refuse
        return None


def _ends(model: str | Path) -> list[int]:
    """Further tokens that end a reply, of the model's generation configuration."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(str(model), local_files_only=True).eos_token_id
    except Exception:  # it may have none
        return []
    return list(ends) if isinstance(ends, list) else [ends] if ends is not None else []


def _shown(result: Message) -> Message:
    """A result as the template is rendered with it: one word in the place of its pieces, which TemplateDialect makes a slot.
    What has no pieces is rendered by its own words."""
    rest = {key: value for key, value in result.items() if key != "pieces"}
    return {**rest, "content": _WORD, "slot": True} if "pieces" in result else rest


def _readable(message: Message) -> Message:
    """A message as a template reads it: what the assistant thought apart from what it said, arguments as a dict and not as the
    API's JSON string."""
    if message.get("role") != "assistant":
        return message
    thoughts, content = message.get("reasoning_content") or message.get("reasoning"), _text(message.get("content"))
    if not thoughts:
        thoughts, content = thoughts_apart(content)
    readable = {**message, "content": content}
    if thoughts:
        readable["reasoning_content"] = thoughts
    if message.get("tool_calls"):
        functions = [{**call["function"], "arguments": _loads(call["function"]["arguments"])} for call in message["tool_calls"]]
        readable["tool_calls"] = [{"function": function} for function in functions]
    return readable


def _text(content: Any) -> str:
    """A message's content is text, nothing, or parts of which some are text."""
    if not isinstance(content, list):
        return content or ""
    return "".join(part["text"] for part in content if isinstance(part.get("text"), str))


def _loads(arguments: Any) -> Any:
    """Broken JSON, or one that no store can hold, stays as it is: the policy's own doing, and its error to see."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if _can_be_kept(value) else arguments


def _speech(text: str, thoughts: str, calls: Sequence[ToolCall]) -> Speech:
    message: Message = {"role": "assistant", "content": text}
    return Speech(text, message | ({"reasoning_content": thoughts} if thoughts else {}), tuple(calls))


def _read(function: dict[str, Any]) -> ToolCall:
    """A call as a text policy wrote it."""
    try:
        arguments = function["arguments"]
        value = json.loads(arguments if isinstance(arguments, str) else json.dumps(arguments))
    except (ValueError, RecursionError):
        return ToolCall(function["name"], {}, "this tool call cannot be read (invalid json)")
    return _checked(function["name"], value)


def _parsed(call: Any) -> ToolCall:
    """A call as `renderers` found it in tokens."""
    if call.status != "ok":
        return replace(_checked(call.name, {}), error=f"this tool call cannot be read ({call.status.value.replace('_', ' ')})")
    return _checked(call.name, call.arguments)


def _checked(name: Any, arguments: Any) -> ToolCall:
    """What a trace can hold of a call; JSON allows numbers and characters that no store does."""
    name = name if isinstance(name, str) and _can_be_kept(name) else ""
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, "arguments must be a JSON object")
    if not name or not _can_be_kept(arguments):
        why = "a name that is none, a number too long, half a character, or nested too deeply"
        return ToolCall(name, {}, f"this tool call cannot be read ({why})")
    return ToolCall(name, arguments)


def _can_be_kept(value: Any) -> bool:
    try:
        check_depth(value)
        msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError, RecursionError):
        return False
    return True
