"""A model's tokenizer in which only the template writes control tokens, such as `<|im_end|>` or `<tool_call>`.

Text of messages is words, whatever stands in it, and comes back as it went in. A template is rendered with such text marked:
MARK stands behind the first letter of each control string in it, so that neither template nor tokenizer takes it for its own.

    mark("a <think> b")                               ->  "a <" MARK "think> b"
    encode("<|im_start|>user\\n" + mark("a <think>"))  ->  the control token 1, then the words "user\\n", "a <", "think", ">"
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from trivium.errors import Unsupported

MARK = "\udfff"  # half of a surrogate pair: no text that can be stored or tokenised holds one

_Token = tuple[int, tuple[int, int]]  # its number, and where its letters stand: [start, stop)


class Tokenizer:
    """Wraps a fast tokenizer of transformers, and is one itself as far as `renderers` asks. Text without control strings gets
    the tokens that it always got. Raises Unsupported for a slow tokenizer.

    A control token is an added one that is special, or has a letter that belongs in no word; neither white space nor the
    unknown token is one.
    """

    def __init__(self, tokenizer: Any) -> None:
        import tokenizers

        if not getattr(tokenizer, "is_fast", False):
            raise Unsupported(f"the tokenizer {type(tokenizer).__name__} is a slow one: give a folder with a tokenizer.json")
        self._tokenizer, backend = tokenizer, tokenizer.backend_tokenizer
        self._bare = tokenizers.Tokenizer(backend.model)  # the same vocabulary, and nothing added
        self._bare.normalizer, self._bare.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items() if _controls(token)}
        added.pop(str(tokenizer.unk_token), None)
        self._numbers = added
        self.control = frozenset(added.values())
        strings = "|".join(map(re.escape, sorted(added, key=len, reverse=True))) or r"(?!)"
        self._string, self._template = re.compile(strings), re.compile(f"({strings})(?!{MARK})")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __call__(self, text: Any, **options: Any) -> Any:
        """As transformers has it. Of marked text: its tokens, and their places in it as `offset_mapping`."""
        if MARK not in text:
            return self._tokenizer(text, **options)
        tokens = self._parts(text)
        return {"input_ids": [token for token, _ in tokens], "offset_mapping": [place for _, place in tokens]}

    def encode(self, text: str, **options: Any) -> list[int]:
        """The tokens of a rendered template: control strings in it are control tokens, marked ones are words."""
        return [token for token, _ in self._parts(text)] if MARK in text else self._tokenizer.encode(text, **options)

    def words(self, text: str) -> list[int]:
        """The tokens of text from elsewhere: no control token is among them."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens if self.control.isdisjoint(tokens) else [token for token, _ in self._words(text)]

    def mark(self, value: Any) -> Any:
        """`value` with all text in it marked, for a template to render. Raises ValueError for half of a surrogate pair."""
        if isinstance(value, dict):
            return {self.mark(key): self.mark(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(each) for each in value]
        return self._marked(value) if isinstance(value, str) else value

    def unmark(self, text: str) -> str:
        return text.replace(MARK, "")

    def spelled(self, tokens: Sequence[int]) -> str:
        """Tokens as marked text: control tokens stand as their strings, and words that spell one are marked."""
        parts: list[str] = []
        for control, run in groupby(tokens, self.control.__contains__):
            text = self._tokenizer.decode(list(run), skip_special_tokens=False, clean_up_tokenization_spaces=False)
            parts.append(text if control else self._string.sub(lambda found: found[0][0] + MARK + found[0][1:], text))
        return "".join(parts)

    def first_control(self, text: str) -> tuple[str, int] | None:
        """The first control string in a rendered template, and its token."""
        found = self._template.search(text)
        return (found[0], self._numbers[found[0]]) if found and found[0] else None

    def number_of(self, string: str) -> int | None:
        """The control token that is written so."""
        return self._numbers.get(string)

    def _marked(self, text: str) -> str:
        text.encode()
        if self.control.isdisjoint(self._tokenizer.encode(text, add_special_tokens=False)):
            return text
        parts, last = [], 0
        while match := self._string.search(text, last):
            parts += [text[last : match.start() + 1], MARK]
            last = match.start() + 1
        parts = parts or [text[:1], MARK]  # only the normalised text holds one
        return "".join([*parts, text[last or 1 :]])

    def _parts(self, text: str) -> list[_Token]:
        """The tokens of marked text: control strings without a mark by their numbers, all between as words."""
        tokens: list[_Token] = []
        start = 0
        for number, part in enumerate(self._template.split(text)):
            stop = start + len(part)
            if number % 2:
                tokens.append((self._numbers[part], (start, stop)))
            else:
                places = [*(start + at for at, letter in enumerate(part) if letter != MARK), stop]
                words = self._words(part.replace(MARK, ""))
                tokens += [(token, (places[first], places[last])) for token, (first, last) in words]
            start = stop
        return tokens

    def _words(self, text: str) -> list[_Token]:
        encoding = self._bare.encode(text, add_special_tokens=False)
        if self.control.isdisjoint(encoding.ids):
            return list(zip(encoding.ids, encoding.offsets, strict=True))
        # a vocabulary that can put a control string together has to spell it
        letters = [self._bare.encode(letter, add_special_tokens=False).ids for letter in text]
        return [(token, (at, at + 1)) for at, tokens in enumerate(letters) for token in tokens]


def _controls(token: Any) -> bool:
    text = str(token).replace("\u2581", " ")  # how some vocabularies write a space
    return bool(text.strip()) and (token.special or re.search(r"[^\w\s]", text) is not None)
