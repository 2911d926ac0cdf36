"""A guess says where to compute ahead and never what is said (engine/drafts.py)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.engine.test_cache import whole
from tests.laws.test_engine import learner_logprobs, prompts, speak
from trivium.engine import Engine, drafts, engine
from trivium.engine.drafts import Drafts
from trivium.nn import Network
from trivium.trace import Sampling


@pytest.fixture(scope="module")
def net(tiny_model) -> Network:
    return Network.load(tiny_model)


def said(net: Network, sampling: Sampling, stop: tuple[int, ...] = (), asked=None):
    """What is said to the same prompts twice over, in few slots, with what the engine counted."""
    speaker = Engine(net, renderer=SimpleNamespace(stop_tokens=stop), slots=3, context=400)
    return speak(speaker, asked or prompts(4) * 2, sampling), speaker


WAYS = [Sampling(0.02, max_tokens=90), Sampling(0.0, max_tokens=90), Sampling(1.0, top_k=2, max_tokens=90)]


@pytest.mark.parametrize("sampling", WAYS, ids=["cold", "greedy", "truncated"])
def test_what_is_said_does_not_depend_on_guesses(net, sampling, monkeypatch):
    with_them, speaker = said(net, sampling)
    assert 20 < speaker.drafts.hits <= speaker.drafts.guesses
    monkeypatch.setattr(engine, "_GUESSES", 0)
    without, silent = said(net, sampling)
    assert not silent.drafts.guesses
    for one, other in zip(with_them, without, strict=True):
        assert (one.tokens, one.versions) == (other.tokens, other.versions)
        assert torch.allclose(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=2e-5)


def test_logprobs_of_guessed_tokens_are_the_learners_and_so_is_what_is_kept_for_the_next_turn(net):
    replies, speaker = said(net, Sampling(0.02, max_tokens=90))
    turns = [[*prompt, *reply.tokens, 7, 8, 9] for prompt, reply in zip(prompts(4) * 2, replies, strict=True)]
    reused = speaker.cache.reused
    for tokens, reply in zip(turns, speak(speaker, turns, Sampling(1.0, max_tokens=30), seed=1), strict=True):
        wanted = learner_logprobs(net, [*tokens, *reply.tokens])[len(tokens) - 1 :]
        assert (wanted - torch.tensor(reply.logprobs)).abs().max() < 2e-5
    assert speaker.cache.reused - reused > sum(len(tokens) - 40 for tokens in turns)
    whole(speaker.cache)


def test_new_weights_and_a_cleared_engine_begin_without_guesses(net):
    _, speaker = said(net, Sampling(0.0, max_tokens=60))
    last = next(iter(speaker.drafts._next))
    assert speaker.drafts.guess(last, 1)
    speaker.load(net.own_state(), 1)
    assert not speaker.drafts.guess(last, 1)


def test_a_reply_ends_at_its_stop_token_and_at_its_length_also_within_a_guess(net):
    free, _ = said(net, Sampling(0.0, max_tokens=60))
    stop = free[0].tokens[30]
    cut, speaker = said(net, Sampling(0.0, max_tokens=60), (stop,))
    for one, other in zip(cut, free, strict=True):
        wanted = other.tokens[: other.tokens.index(stop) + 1] if stop in other.tokens else other.tokens
        assert one.tokens == wanted
    assert speaker.drafts.hits


def test_a_guess_follows_what_was_said_last_and_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(drafts, "_ENTRIES", 5)
    table = Drafts()
    for end in range(4, 8):
        table.record([1, 2, 3, 4, 5, 1, 9][:end])
    assert table.guess([7, 1, 2, 3], 7) == [4, 5, 1, 9]
    assert table.guess([1, 2, 3], 2) == [4, 5]
    assert table.guess([9, 9, 9], 7) == []
    table.record([1, 2, 3, 6])
    assert table.guess([1, 2, 3], 1) == [6]
    for token in range(5):
        table.record([0, 0, token, token])
    assert table.guess([1, 2, 3], 1) == []
    table.clear()
    assert table.guess([0, 0, 4], 1) == []
