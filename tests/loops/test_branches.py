"""More last turns of an attempt that finished: a group of their own, which changes no attempt and outlives a kill."""

from __future__ import annotations

import asyncio

import pytest

from tests.laws.walks import search_corpus
from tests.loops.house import attempts
from tests.loops.test_real import GROUPS, PROBE, SIZE, TASKS, judge, parts
from trivium.engine import Engine
from trivium.errors import InputError
from trivium.fleet import Rank
from trivium.harness import Harness, Limits, Window
from trivium.loops import rl
from trivium.loops.attempts import Slots
from trivium.loops.staleness import fresh
from trivium.trace import Sampling, Score, Store, rows
from trivium.train import Batch, Kimi
from trivium.train.batch import counts, lessons

STEPS, BRANCHES = 2, 3


def run(tiny_model, renderer, engine_kind=Engine, scorer=judge, **options):
    """The groups and the numbers of each step, and the weights in the end."""
    _, engine, learner = parts(tiny_model, renderer)
    engine.__class__ = engine_kind
    harness = Harness([search_corpus], Window(900), "Search.", Limits(turns=3), specs=False)
    chosen = dict(groups=GROUPS, size=SIZE, steps=STEPS, seed=3, sampling=Sampling(max_tokens=24), branches=BRANCHES) | options
    batches, numbers = [], []

    async def seen():
        async for groups, scores in attempts(harness, TASKS, engine, lambda step: scorer, **chosen):
            batches.append(groups)
            yield groups, scores

    async def main():
        async for event in rl(seen(), learner, engine, PROBE):
            numbers.append({name: value for name, value in event.metrics.items() if "seconds" not in name})

    asyncio.run(main())
    return batches, numbers, learner.network.digest()


def apart(groups):
    """The attempts of a step, and its branches by the attempt that they left."""
    whole = [episode for group in groups for episode in group.episodes if not episode.parent]
    return whole, {parent: group.episodes for group in groups if (parent := group.episodes[0].parent)}


def test_each_attempt_that_finished_has_a_group_of_its_last_turns(tiny_model, renderer):
    batches, _, _ = run(tiny_model, renderer)
    finished, drawn = 0, []
    for groups in batches:
        whole, branches = apart(groups)
        assert not any(episode.parent for episode in whole)
        assert [e.id for e in whole if e.agent.stop.reason == "finished"] == list(branches)
        finished += len(branches)
        for episode in whole:
            context = episode.agent.segments[-1]
            for branch in branches.get(episode.id, ()):
                (row,) = rows(branch, {"agent"})
                assert branch.parent == episode.id and branch.seed == episode.seed
                assert row.tokens[~row.mask].tolist() == context.tokens[: context.sampled()[-1].start]
        every = [episode.id for group in groups for episode in group.episodes]
        assert len(set(every)) == len(every) and all(len(group) == BRANCHES for group in branches.values())
        drawn += [tuple(e.agent.segments[-1].logprobs[-3:]) for group in branches.values() for e in group]
    assert 0 < finished < STEPS * GROUPS * SIZE, "by chance some of a random model's attempts end, and some are cut off"
    assert len(set(drawn)) == len(drawn), "each is drawn by a stream of its own"


def test_branches_change_no_attempt_of_their_step_and_stand_in_no_mean(tiny_model, renderer):
    (groups, *_), (numbers, *_), _ = run(tiny_model, renderer)
    (plain, *_), (without, *_), _ = run(tiny_model, renderer, branches=0)
    whole, branches = apart(groups)
    alone = [segment for group in plain for episode in group.episodes for segment in episode.agent.segments]
    beside = [segment for episode in whole for segment in episode.agent.segments]
    assert branches and [(s.tokens, s.versions) for s in beside] == [(s.tokens, s.versions) for s in alone]
    for mine, theirs in zip(beside, alone, strict=True):  # other rows in the batch: some CPUs then round otherwise
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5, nan_ok=True)
    assert (numbers["reward"], numbers["turns"], numbers["calls"]) == (without["reward"], without["turns"], without["calls"])


def test_a_killed_run_learns_from_the_same_branches_again(tiny_model, renderer, tmp_path):
    class Mute(Engine):
        async def speak(self, view, sampling):
            raise AssertionError("nothing is attempted again")

    store = Store(tmp_path / "episodes.db")
    batches, _, digest = run(tiny_model, renderer, store=store)
    known = batches[0][0].episodes[0].id
    store.score([Score(known, name, 1.0, "somebody") for name in ("human", "calls")])  # who comes later changes nothing
    again, numbers, repeated = run(tiny_model, renderer, Mute, store=store)
    assert not any("human" in each for each in numbers)
    assert repeated == digest and [each["episodes_stored"] for each in numbers] == [GROUPS * SIZE] * STEPS
    assert [[g.rewards for g in groups] for groups in again] == [[g.rewards for g in groups] for groups in batches]
    with pytest.raises(InputError, match="steps of a run with other branches"):
        run(tiny_model, renderer, store=store, branches=2)


def test_a_branch_that_cannot_be_scored_is_left_out_of_its_group(tiny_model, renderer):
    async def picky(episode):
        if episode.parent and episode.sample % BRANCHES == 0:
            raise ValueError("not this branch, please")
        return await judge(episode)

    batches, numbers, _ = run(tiny_model, renderer, scorer=picky)
    sizes = [len(group.episodes) for groups in batches for group in groups if group.episodes[0].parent]
    assert set(sizes) == {BRANCHES - 1}
    assert [each["episodes_unscored"] for each in numbers] == [0] * STEPS, "branches stand in no count of attempts"


@pytest.mark.parametrize("branches", [-1, 1])
def test_there_must_be_something_to_compare_a_branch_with(tiny_model, renderer, branches):
    with pytest.raises(InputError, match="2 or more, or 0 for none"):
        run(tiny_model, renderer, branches=branches)


def test_ranks_in_order_have_the_groups_of_one_process(tiny_model, renderer):
    """Else it would depend on the number of workers which optimizer step an episode is learned in."""

    async def named(rank: Rank) -> list[tuple[str, str]]:
        _, engine, _ = parts(tiny_model, renderer)
        harness = Harness([search_corpus], Window(900), "Search.", Limits(turns=3), specs=False)
        chosen = dict(groups=GROUPS, size=SIZE, steps=1, seed=3, sampling=Sampling(max_tokens=24), branches=BRANCHES, rank=rank)
        groups, _ = await anext(attempts(harness, TASKS, engine, lambda step: judge, **chosen))
        return [(group.task_id, group.episodes[0].parent) for group in groups]

    one, *two = (asyncio.run(named(rank)) for rank in (Rank(), Rank(0, 2), Rank(1, 2)))
    assert one == [*two[0], *two[1]]
    assert any(parent for _, parent in one) and [task for task, _ in one] == sorted(task for task, _ in one)


def test_a_task_is_one_problem_to_a_normaliser_branches_and_all(tiny_model, renderer):
    (groups, *_), _, _ = run(tiny_model, renderer, steps=1)
    found, dropped = lessons(Batch(groups), Kimi(), {"agent"})
    assert dropped < len(groups) and any(lesson.parent for lesson in found)
    made = counts(found)
    assert made.groups == len({group.task_id for group in groups}) == GROUPS
    assert Kimi().normaliser(made) @ made.length == pytest.approx(1.0)


def test_the_oldest_step_has_the_next_slot_and_a_cancelled_wait_takes_none():
    slots, order = Slots(1), []

    async def live(step: int, name: str) -> None:
        async with slots(step):
            order.append(name)
            await asyncio.sleep(0)

    async def main() -> None:
        waiting = [
            asyncio.create_task(live(step, name)) for step, name in ((0, "a"), (2, "c"), (1, "b"), (1, "gone"), (1, "b2"))
        ]
        await asyncio.sleep(0)
        waiting[3].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(1), slots(9):
            order.append("free")

    asyncio.run(main())
    assert order == ["a", "b", "b2", "c", "free"]


def test_what_is_dropped_is_counted_in_attempts(tiny_model, renderer):
    (groups, *_), _, _ = run(tiny_model, renderer, steps=1)
    kept, dropped = fresh(groups, 5, 0, {"agent"})
    assert any(group.episodes[0].parent for group in groups) and not kept and dropped == GROUPS * SIZE
