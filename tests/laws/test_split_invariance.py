"""Law 3: the same sampled tokens under the same contexts teach the same as more segments, rows or micro-batches.

On a real network, for every algorithm of the table. Ranks: tests/train/test_data_parallel.py.
"""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.train.house import gradients, groups, learner, network, record, recut
from trivium.trace import Override, Sampling
from trivium.train import CISPO, GRPO, GSPO, TABLE, Algorithm, Batch, DrGRPO, Group
from trivium.train.batch import lessons

NETWORK = network()
BATCH = Batch(groups(count=4))
BATCH.groups[2] = dataclasses.replace(BATCH.groups[2], baseline=1.25)  # somebody's own, in place of the group's
BATCH.groups[3] = dataclasses.replace(BATCH.groups[3], rewards=[0.5] * 3)  # dropped, counted or regularised
EPISODES = [episode for group in BATCH.groups for episode in group.episodes]
record(NETWORK, EPISODES, noise=0.4)
ROWS = [*TABLE, GRPO(kl=0.01)]
whole_cache: dict = {}


def whole(algorithm: Algorithm, substeps: int):
    """Gradients and loss of the batch as it was recorded: one segment an episode, one run of tokens."""
    key = (algorithm.name, algorithm.reference, substeps)
    if key not in whole_cache:
        whole_cache[key] = gradients(learner(NETWORK, algorithm, substeps=substeps), BATCH)
    return whole_cache[key]


def same(ours, theirs) -> None:
    (left, metrics), (right, others) = ours, theirs
    assert len(left) == len(right)
    for mine, other in zip(left, right, strict=True):
        for name in mine:
            scale = mine[name].abs().max()
            torch.testing.assert_close(other[name], mine[name], rtol=1e-6, atol=float(scale) * 1e-6 + 1e-12)
    for name in ("loss", "entropy", "clipped", "tokens_trained", "episodes", "staleness"):
        assert others[name] == pytest.approx(metrics[name], rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("algorithm", ROWS, ids=lambda row: f"{row.name}{'+ref' if row.reference else ''}")
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    cuts=st.lists(st.lists(st.integers(1, 30), max_size=5), min_size=12, max_size=12),
    micro_tokens=st.sampled_from([1, 17, 40, 10_000]),
    substeps=st.sampled_from([1, 2, 4]),
)
def test_segments_rows_and_micro_batches(algorithm, cuts, micro_tokens, substeps):
    fresh = iter([recut(episode, cut) for episode, cut in zip(EPISODES, cuts, strict=True)])
    cut = Batch([dataclasses.replace(g, episodes=[next(fresh) for _ in g.episodes]) for g in BATCH.groups])
    ours = gradients(learner(NETWORK, algorithm, substeps=substeps, micro_tokens=micro_tokens), cut)
    same(whole(algorithm, substeps), ours)


@pytest.mark.parametrize("algorithm", [GRPO(), DrGRPO(), GSPO()], ids=lambda row: row.name)
def test_the_test_would_notice_rows_taken_for_sequences(algorithm, monkeypatch):
    """What peers do, an episode's rows as sequences of their own, is far outside the tolerance."""
    cut = Batch([dataclasses.replace(g, episodes=[recut(e, [7, 9, 12]) for e in g.episodes]) for g in BATCH.groups])
    monkeypatch.setattr("trivium.train.learner.lessons", by_rows)
    with pytest.raises(AssertionError):
        same(whole(algorithm, 1), gradients(learner(NETWORK, algorithm), cut))


def by_rows(*arguments):
    found, dropped = lessons(*arguments)
    return [dataclasses.replace(lesson, rows=[row]) for lesson in found for row in lesson.rows], dropped


def test_a_group_without_signal_changes_nothing_but_its_count():
    dull = Group("dull", BATCH.groups[0].episodes, [0.5, 0.5, 0.5])
    ours = gradients(learner(NETWORK, CISPO()), Batch([dull, *BATCH.groups]))
    same(whole(CISPO(), 1), ours)
    assert ours[1]["groups_dropped"] == 2 and ours[1]["groups"] == 5


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts=st.lists(st.lists(st.integers(1, 30), max_size=5), min_size=12, max_size=12), micro_tokens=st.sampled_from([1, 40]))
def test_requests_of_several_temperatures(cuts, micro_tokens):
    """Rows of their own, since a row has one temperature, and still one episode to every normaliser."""
    mixed, cut = [copy.deepcopy(EPISODES) for _ in range(2)]
    for episode in (*mixed, *cut):
        (segment,) = episode.agent.segments
        segment.overrides = [Override(s.start, s.stop, Sampling(0.5 + n)) for n, s in enumerate(segment.sampled()[:2])]
    fresh, recuts = iter(mixed), iter([recut(*each) for each in zip(cut, cuts, strict=True)])
    whole = Batch([dataclasses.replace(g, episodes=[next(fresh) for _ in g.episodes]) for g in BATCH.groups])
    parts = Batch([dataclasses.replace(g, episodes=[next(recuts) for _ in g.episodes]) for g in BATCH.groups])
    ours = gradients(learner(NETWORK, GRPO(), micro_tokens=10_000), whole)
    same(ours, gradients(learner(NETWORK, GRPO(), micro_tokens=micro_tokens), parts))
    with pytest.raises(AssertionError):
        same(ours, gradients(learner(NETWORK, GRPO()), BATCH))
