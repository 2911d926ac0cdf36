"""An answer is over where its harness says: the rest is neither kept nor learned from, and the episode finished."""

from __future__ import annotations

import asyncio
import functools

import pytest

from tests.harness.test_rough import Words, asks, two
from trivium.agents.search.citation import cited, repetition
from trivium.assets import NANO
from trivium.errors import InputError
from trivium.harness import Harness, Window, prune_chunks
from trivium.policy import Renderer, Scripted
from trivium.policy.scripted import say
from trivium.trace import Sampling, Task, rows


@pytest.fixture(scope="module")
def nano() -> Renderer:
    return Renderer.load(NANO)


def attempt(policy, window: Window = Window(900)):
    harness = Harness([two, prune_chunks], window, specs=False, ending=repetition)
    return asyncio.run(harness.run(Task("q", "?"), policy, sampling=Sampling(max_tokens=200)))


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("#1 #2", "#1 #2"),
        ("#1 #2 #2 #1 #3", "#1 #2"),
        ("#1 #12 #1 #12", "#1 #12"),
        ("#1 #12 #13 #123 #12 #4", "#1 #12 #13 #123"),  # a handle is no other's beginning
        ("#7 says it, and #7 says it well", "#7 says it, and"),
        ("nothing", "nothing"),
        ("#1 日本 #2 日本 #1", "#1 日本 #2 日本"),  # of whose letters each takes several tokens
        ("#1 日 #1", "#1 日"),
    ],
)
def test_an_answer_is_over_before_the_first_handle_said_again(nano, said, kept):
    agent = attempt(Words(nano, said)).agent
    assert (agent.answer.strip(), agent.stop.reason) == (kept, "finished")
    segment = agent.segments[-1]
    [spoken] = segment.sampled()
    heard = nano.tokenizer.decode(segment.tokens[spoken.start : spoken.stop])
    assert heard.removesuffix("<|im_end|>").strip() == kept
    assert heard.endswith("<|im_end|>") == (said == kept)
    assert len(segment.logprobs) == len(segment.kept) == len(segment.tokens) == segment.versions[-1].stop


def test_a_loop_teaches_nothing_beyond_what_it_repeats(nano):
    short, long = (attempt(Words(nano, "#1 #2 #2" + " #2" * more)) for more in (1, 30))
    assert short.agent.segments[-1].tokens == long.agent.segments[-1].tokens
    counts = [sum(row.trained for row in rows(episode, {"agent"})) for episode in (short, long)]
    assert counts[0] == counts[1] > 0


def test_a_text_only_policy_is_cut_too(nano):
    agent = attempt(Scripted([say("#1 #2 #1 #2")], nano, "agent")).agent
    assert (agent.answer.strip(), cited(agent)) == ("#1 #2", ["#1", "#2"])


@pytest.mark.parametrize(
    ("message", "answer", "heard"),
    [
        (say(" #1 <|im_end|> #2 #1 #3"), "#1 <|im_end|> #2", " #1 <|im_end|> #2"),
        (say("<think>\n#9 #9\n</think>\n\n #1 #1"), "#1", "<think>\n#9 #9\n</think>\n\n #1"),
        ({**say("#1 #1"), "reasoning_content": "#9 #9"}, "#1", "<think>\n#9 #9\n</think>\n\n#1"),
        (say(" #1 #2"), "#1 #2", " #1 #2<|im_end|>"),
    ],
    ids=range(4),
)
def test_a_text_only_policy_is_cut_where_its_message_says(nano, message, answer, heard):
    agent = attempt(Scripted([message], nano, "agent")).agent
    assert (agent.answer, agent.stop.reason) == (answer, "finished")
    segment = agent.segments[-1]
    [spoken] = segment.sampled()
    assert nano.decode(segment.tokens[spoken.start : spoken.stop]) == heard


def test_calls_and_summaries_go_on_to_their_own_end(nano):
    asked, summary = asks("prune_chunks", '{"keep": ["#1", "#1"]}'), "#1 and #1 again"
    agent = attempt(Words(nano, asks("two", "{}"), f"#1 and #1: {asked}", "#1")).agent
    assert [call.name for call in agent.calls] == ["two", "prune_chunks"] and agent.answer.strip() == "#1"
    agent = attempt(Words(nano, asks("two", "{}"), summary, "#1"), Window(900, summarize=0.01)).agent
    assert any(summary in nano.tokenizer.decode(segment.tokens) for segment in agent.segments)


def test_a_space_at_the_end_takes_no_token_of_what_comes_after_it(nano):
    def second(text: str) -> int:
        return text.index("#2")  # behind a space

    harness = Harness([two], Window(900), specs=False, ending=second)
    agent = asyncio.run(harness.run(Task("q", "?"), Words(nano, "#1 #2 #3"))).agent
    assert agent.answer == "#1"


def test_an_ending_beyond_the_end_changes_nothing(nano):
    def far(text: str) -> int:
        return 50

    harness = Harness([two], Window(900), specs=False, ending=far)
    agent = asyncio.run(harness.run(Task("q", "?"), Words(nano, "#1 #1"))).agent
    assert (agent.answer.strip(), agent.stop.reason) == ("#1 #1", "finished")


@pytest.mark.parametrize("nameless", [lambda text: None, functools.partial(repetition)])
def test_an_ending_without_a_name_is_refused(nameless):
    """Stores tell harnesses apart by it."""
    with pytest.raises(InputError, match="write the ending with def"):
        Harness([two], Window(900), ending=nameless)


def test_what_ends_an_answer_is_part_of_how_episodes_live():
    with_, without = (Harness([two], Window(900), ending=ending) for ending in (repetition, None))
    assert with_.digest != without.digest
