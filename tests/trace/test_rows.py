"""What rows say of how their tokens were drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trivium.errors import LawError
from trivium.trace import (
    Branch,
    Call,
    Episode,
    Point,
    Sampling,
    Segment,
    Span,
    Spawn,
    Task,
    Thread,
    decode,
    encode,
    rows,
)  # fmt: skip
from trivium.trace.episode import Override, Stretch

WARM, COLD = Sampling(), Sampling(temperature=0.5)


def episode(segment: Segment) -> Episode:
    return Episode("e", Task("t", "?"), threads=[Thread("0", "agent", [segment])])


def segment(*requests: Sampling | None, kept: float = 1.0) -> Segment:
    """A prompt of three tokens, then for each request two sampled tokens and one of its result."""
    whole = Segment(sampling=WARM)
    whole.append([1, 2, 3], "prompt")
    for number, sampling in enumerate(requests):
        whole.speak([10 + number] * 2, [-1.0, -2.0], [number] * 2, [1.0, kept], sampling)
        whole.append([9], "message")
    return whole


def test_a_row_is_its_segment_in_arrays():
    first, second = segment(None), Segment([5, 6], [math.nan, -3.0], [1.0, 1.0], [Span(0, 1, "prompt"), Span(1, 2, "sampled")])
    second.versions = [Stretch(1, 2, 8)]
    silent = Segment([5], [math.nan], [1.0], [Span(0, 1, "prompt")])
    whole = Episode("e", Task("t", "?"), threads=[Thread("0", "other"), Thread("1", "agent", [silent, first, second])])
    row, last = rows(whole, {"agent"})
    assert (row.episode, row.thread, row.segment, last.segment, row.trained) == ("e", "1", 1, 2, 2)
    assert row.tokens.tolist() == [1, 2, 3, 10, 10, 9] and row.tokens.dtype == np.int32
    assert row.mask.tolist() == [False] * 3 + [True] * 2 + [False] and row.mask.dtype == bool
    assert row.versions.tolist() == [-1, -1, -1, 0, 0, -1] and row.versions.dtype == np.int32
    assert row.logprobs[3:5].tolist() == [-1.0, -2.0] and row.logprobs.dtype == np.float32
    assert np.isnan(row.logprobs).tolist() == [True] * 3 + [False] * 2 + [True]
    assert last.versions.tolist() == [-1, 8] and last.logprobs[1] == -3.0


def test_a_segment_grows_by_what_is_appended_and_spoken():
    whole = Segment()
    assert whole.append([1, 2], "chunk", "#1") == Span(0, 2, "chunk", "#1")
    assert whole.append([], "message") == Span(2, 2, "message")  # of which it keeps no span
    assert whole.speak([3], [-1.0], [5]) == Span(2, 3, "sampled")
    whole.speak([4], [], [6], [0.5])
    assert whole.spans == [Span(0, 2, "chunk", "#1"), Span(2, 3, "sampled"), Span(3, 4, "sampled")]
    assert whole.kept == [1.0, 1.0, 1.0, 0.5] and whole.logprobs[2] == -1.0 and math.isnan(whole.logprobs[3])
    with pytest.raises(LawError, match="2 tokens with 1 logprobs"):
        whole.speak([5, 6], [-1.0], [7, 7])
    with pytest.raises(LawError, match="1 tokens with 1 logprobs and 2 kept masses"):
        whole.speak([5], [-1.0], [7], [1.0, 1.0])


def test_requests_of_several_temperatures_are_rows_of_their_own():
    whole = segment(WARM, COLD, None, Sampling(temperature=0.5, top_k=3))
    (warm, cold) = rows(episode(whole), {"agent"})
    assert (warm.temperature, cold.temperature) == (1.0, 0.5)
    assert warm.tokens[warm.mask].tolist() == [10, 10, 12, 12] and cold.tokens[cold.mask].tolist() == [11, 11, 13, 13]
    assert warm.versions[warm.mask].tolist() == [0, 0, 2, 2]
    assert not (warm.mask & cold.mask).any() and np.array_equal(warm.tokens, cold.tokens)
    assert whole.overrides == [Override(6, 8, COLD), Override(12, 14, Sampling(temperature=0.5, top_k=3))]
    assert [whole.sampling_at(place).temperature for place in (3, 5, 6, 7, 8, 9)] == [1.0, 1.0, 0.5, 0.5, 1.0, 1.0]
    assert whole.sampling_at(13).top_k == 3


def test_one_temperature_is_one_row_and_leaves_no_override():
    whole = segment(WARM, None, Sampling())
    (row,) = rows(episode(whole), {"agent"})
    assert whole.overrides == [] and row.trained == 6 and row.temperature == 1.0
    assert [stretch.version for stretch in whole.versions] == [0, 1, 2] and whole.versions[0] == Stretch(3, 5, 0)


def test_the_temperature_of_a_token_that_was_carried_over_is_its_own_segments():
    whole = segment(COLD, WARM)
    whole.carried = 6  # the first request's tokens are context here
    (row,) = rows(episode(whole), {"agent"})
    assert row.temperature == 1.0 and row.tokens[row.mask].tolist() == [11, 11]


@pytest.mark.parametrize(("kept", "truncated"), [(1.0, False), (1 - 9e-7, False), (1 - 1.1e-6, True), (0.7, True)])
def test_a_mass_of_one_to_rounding_is_untruncated(kept, truncated):
    """Numbers of 32 bits lie 6e-8 apart below 1, and sums of probabilities miss it by some of these; a cut takes more."""
    warm, cold = rows(episode(segment(None, COLD, kept=1.0)), {"agent"})
    assert not warm.truncated and not cold.truncated
    (row,) = rows(episode(segment(None, kept=kept)), {"agent"})
    assert row.truncated is truncated


def test_a_cut_request_marks_its_own_row_alone():
    whole = segment(None, COLD)
    whole.kept[7] = 0.5
    warm, cold = rows(episode(whole), {"agent"})
    assert not warm.truncated and cold.truncated


def test_a_token_of_two_spans_is_refused():
    whole = segment(None)
    whole.spans.append(Span(4, 6, "sampled"))
    with pytest.raises(LawError, match="episode e, thread 0: a sampled token stands in two spans"):
        rows(episode(whole), {"agent"})


def test_an_episode_finds_its_threads_and_what_it_branched_off():
    whole = Episode("e", Task("t", "?"), threads=[Thread("0", "agent"), Thread("1", "helper")])
    assert whole.agent.id == "0" and whole.thread("1").policy == "helper" and (whole.parent, whole.inherited) == ("", 0)
    at = Point("0", 0, 9)
    whole.ops += [
        Spawn(author="agent", call="c", at=at, child="1"),
        Branch(author="harness", parent="d", snapshot="d@3", at=at, turn=3),
    ]
    assert (whole.parent, whole.inherited) == ("d", 3)


def test_what_a_call_and_an_episode_say_of_themselves_comes_back_from_bytes():
    whole = episode(segment(COLD))
    whole.agent.calls.append(Call("c", 0, "look", {}, error="no such thing", fault="arguments"))
    whole.began, whole.ended, whole.deployment = 10.0, 12.5, "d1"
    again = decode(encode(whole))
    assert again.agent.calls == whole.agent.calls and again.agent.segments[0].overrides == whole.agent.segments[0].overrides
    assert (again.began, again.ended, again.deployment) == (10.0, 12.5, "d1")
