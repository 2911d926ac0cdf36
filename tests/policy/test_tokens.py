"""Text of messages is words: it comes back as it went in, and no control token can come out of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from trivium.agents.search.recipe import NANO
from trivium.errors import Unsupported
from trivium.policy.render import load_tokenizer
from trivium.policy.tokens import MARK, Tokenizer

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def spelling() -> Tokenizer:
    """Its own merges put `<s>` together, one control string is one letter, and `foo` is an added word."""
    vocabulary = {letter: number for number, letter in enumerate([*LETTERS, "s>", "<s>"])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[("s", ">"), ("<", "s>")]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(False, use_regex=False), decoders.ByteLevel()
    return _wrapped(backend, AddedToken("<s>", special=True), AddedToken("\u2603"), AddedToken("foo"), AddedToken("\n\n"))


def folding() -> Tokenizer:
    """Wide letters become narrow ones before control strings are looked for; white space around these is swallowed."""
    backend = Backend(models.BPE(vocab={letter: number for number, letter in enumerate(LETTERS)}, merges=[]))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(False, use_regex=False), decoders.ByteLevel()
    return _wrapped(backend, AddedToken("<end>", lstrip=True, rstrip=True, normalized=True), AddedToken("d><", special=True))


def prefixing() -> Tokenizer:
    """Writes a space before the first word, as SentencePiece does."""
    vocabulary = {letter: number for number, letter in enumerate(["<unk>", "\u2581", *"abcdefghijklmnopqrstuvwxyz<>|/_ \n"])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Metaspace()
    return _wrapped(backend, AddedToken("<|end|>", special=True), AddedToken("<unk>", special=True), unk_token="<unk>")


def _wrapped(backend: Backend, *added: AddedToken, **options: str) -> Tokenizer:
    backend.add_tokens(list(added))
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, **options))


MAKERS = {"nano": lambda: load_tokenizer(NANO), "spelling": spelling, "folding": folding, "prefixing": prefixing}


@pytest.fixture(scope="module", params=MAKERS.values(), ids=MAKERS)
def tokenizer(request) -> Tokenizer:
    return request.param()


def decoded(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def strings(tokenizer: Tokenizer) -> list[str]:
    return [str(token) for number, token in tokenizer.added_tokens_decoder.items() if number in tokenizer.control]


def test_the_control_tokens_are_those_that_belong_in_no_text():
    assert len(strings(load_tokenizer(NANO))) == 9
    assert strings(spelling()) == ["<s>", "\u2603"] and strings(prefixing()) == ["<|end|>"]


def test_a_control_string_is_words_that_read_as_it_does(tokenizer):
    for string in strings(tokenizer):
        assert tokenizer.encode(string)[0] in tokenizer.control
        around = (f"a{string}b", f"a {string} b", string * 3, string[0] + string, f"{string}\n{string[:-1]}", f"x{string[1:]}")
        for text in (string, *around):
            tokens = tokenizer.words(text)
            assert tokenizer.control.isdisjoint(tokens) and decoded(tokenizer, tokens) == text


def test_what_a_normaliser_makes_a_control_string_is_words_too():
    wide = folding()
    assert wide.encode("a\uff1cend\uff1eb") != wide.words("a\uff1cend\uff1eb") == wide.words("a\uff1cend>b")
    assert wide.encode(wide.mark("a\uff1cend\uff1eb")) == wide.words("a\uff1cend\uff1eb")


def test_text_without_control_strings_has_the_tokens_that_it_always_had(tokenizer):
    for text in ("", "Who leads Brennix Holt?\n\nThe < and > of | #12", "caf\u00e9 \u6f22 \U0001f600  two", "foo\n\n bar"):
        assert tokenizer.words(text) == tokenizer.encode(text) and tokenizer.mark(text) is text


def test_a_template_writes_control_tokens_and_the_text_in_it_does_not(tokenizer):
    first, last = strings(tokenizer)[0], strings(tokenizer)[-1]
    begin, end = (tokenizer.convert_tokens_to_ids(string) for string in (first, last))
    for text in (first, f"a{last}b", f"{last}{first}x", f"{first[0]}{first}"):
        marked = f"{first}user\n{tokenizer.mark(text)} {last}a"
        tokens = tokenizer.encode(marked)
        assert [token for token in tokens if token in tokenizer.control] == [begin, end]
        assert decoded(tokenizer, tokens).replace(" ", "") == f"{first}user\n{text} {last}a".replace(" ", "")


FRAGMENTS = ["<", "|", ">", "/", "im_end", "|>", "<|im_end|>", "think>", "<think>", "end", "d><", "<end>", "s>"]
FRAGMENTS += [" ", "x", "\n", "\u2603"]


@pytest.mark.parametrize("name", ["nano", "spelling", "folding"])
def test_no_text_forges(name):
    tokenizer = MAKERS[name]()
    string = strings(tokenizer)[0]
    begin = tokenizer.convert_tokens_to_ids(string)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.sampled_from(FRAGMENTS)).map("".join))
    def forges(text: str) -> None:
        tokens = tokenizer.words(text)
        assert tokenizer.control.isdisjoint(tokens) and decoded(tokenizer, tokens) == text
        rendered = tokenizer.encode(f"{string}a{tokenizer.mark(text)}b{string}a{tokenizer.mark(text)}b")
        assert [token for token in rendered if token in tokenizer.control] == [begin, begin]

    forges()


def test_marks_stand_in_all_text_and_change_nothing_else():
    nano = load_tokenizer(NANO)
    value = {"role": "user", "content": "a<think>", "calls": [{"</think>": ("<tool_call>", 5, None, True)}]}
    marked = nano.mark(value)
    assert marked == {
        "role": "user",
        "content": f"a<{MARK}think>",
        "calls": [{f"<{MARK}/think>": [f"<{MARK}tool_call>", 5, None, True]}],
    }
    with pytest.raises(ValueError, match="surrogates"):
        nano.mark(f"a{MARK}")


def test_tokens_of_marked_text_know_their_places():
    nano = load_tokenizer(NANO)
    text = f"<|im_start|>user\n{nano.mark('a <think> café')}"
    told = nano(text, add_special_tokens=False, return_offsets_mapping=True)
    assert told["input_ids"] == nano.encode(text)
    words = [text[start:stop].replace(MARK, "") for start, stop in told["offset_mapping"]]
    assert words == ["<|im_start|>", "user", "\n", "a", " <", "th", "ink", ">", " ca", "f", "é", "é"]  # which has two bytes
    plain = "<|im_start|>user\na caf\u00e9"
    assert nano(plain)["input_ids"] == nano.encode(plain)


def test_a_slow_tokenizer_is_refused_by_name():
    class Slow:
        is_fast = False

    with pytest.raises(Unsupported, match="the tokenizer Slow is a slow one"):
        Tokenizer(Slow())
