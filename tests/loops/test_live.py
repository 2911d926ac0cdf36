"""The live loop: what is learned from, once across kills; what the gate and the canary make of a candidate."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from dataclasses import replace

import pytest

from tests.train.house import draw, network
from trivium.errors import InputError
from trivium.eval.canary import Canary
from trivium.eval.gate import Decision
from trivium.loops.cycles import Cycles
from trivium.loops.deploy import Deployments
from trivium.loops.live import Listening, Live, Trying
from trivium.loops.traffic import Rules, Window, extend, held_out
from trivium.nn import Network
from trivium.reward.baseline import RunningBaseline
from trivium.reward.detectors import Detector
from trivium.reward.distill import distilled, vote
from trivium.trace import Episode, Feedback, Sampling, Segment, Store, Task, Thread
from trivium.train import CISPO, AdamW, Learner

RULES = Rules(holdout=0.25, versions=1)


def visit(number: int, version: int = 0, deployment: str = "0", user: str = "", **changes) -> Episode:
    """An episode that somebody had, of one reply."""
    dice = random.Random(number)
    segment = Segment(sampling=changes.pop("sampling", Sampling()))
    segment.append(draw(dice, 3, 6), "prompt")
    tokens = draw(dice, 2, 5)
    segment.speak(tokens, [-1.0] * len(tokens), [version] * len(tokens), sampling=segment.sampling)
    thread = Thread("agent", "agent", [segment], answer="an answer")
    task, now = Task("served", f"{'Who' if number % 2 else 'Where'} is {number}?"), time.time() - 1
    facts = {"began": now, "ended": now, "deployment": deployment, "propensity": 1.0, "account": f"local/{user or number}"}
    return Episode(f"served/{version}-{number}", task, threads=[thread], **{**facts, **changes})


def traffic(store: Store, count: int, first: int = 0, liked=lambda number: number % 3 > 0, **facts) -> list[Episode]:
    episodes = [visit(number, **facts) for number in range(first, first + count)]
    store.write(episodes)
    store.listen(
        Feedback(f"{each.id} vote", each.id, "vote", 1.0 if liked(number) else -1.0)
        for number, each in enumerate(episodes, first)
    )
    return episodes


async def promote(candidate, version, incumbent, before):
    return Decision("promote", "it is better")


@pytest.fixture
def run(tmp_path):
    network(0, dtype=Network.load.__defaults__[0]).save(tmp_path / "run" / "model")
    return tmp_path / "run"


def loop(run, examine=promote, share=0.0, **listening) -> Live:
    def learner(model):
        return Learner(Network.load(model), CISPO(), 1e-2, optimizer=AdamW(2))

    rules = listening.pop("rules", RULES)
    settings = {"least": 8, "patience": 0.0, **listening}
    store = Store(run / "served.db")
    return Live(
        run,
        store,
        learner,
        examine,
        Listening(rules, distilled({vote: 1.0}), **settings),
        Trying(share, Canary(0.2), patience=0.0),
    )


def turn(run, **options):
    return asyncio.run(loop(run, **options).cycle())


# --- which episodes


def take(store: Store, after: int, rules: Rules, line: list[int], now: float | None = None) -> Window:
    """The window behind `after`."""
    window = Window(after, after)
    extend(window, store, rules, line, now)
    return window


def test_what_may_be_learned_from_is_fresh_of_this_line_and_of_nobody_held_out(tmp_path):
    store, now = Store(tmp_path / "s.db"), time.time()
    users = [f"local/{number}" for number in range(40)]
    out = next(user for user in users if held_out(user, 0.25)).partition("/")[2]
    one, two, three, four, five, six, *_ = (u.partition("/")[2] for u in users if not held_out(u, 0.25))
    old = visit(2, 3, user=two, ended=now - 25 * 3600)
    greedy = visit(5, 3, user=five, sampling=Sampling(temperature=0.0))
    lived = [visit(0, 3, user=out), visit(1, 3, user=one), old, visit(3, 0, user=three), visit(4, 2, user=four), greedy]
    store.write([*lived, replace(visit(6, 3, user=six), id="rl/1/x/0"), visit(7, 3, user=six, ended=now + 1)])
    window = take(store, 0, replace(RULES, settle=2.0), [3, 1, 0], now + 2)
    fates = {"heldout": 1, "learned": 1, "old": 1, "stale": 1, "foreign": 1, "unsampled": 1}
    assert dict(window.fates) == fates, "and one that no person had is nobody's, and one who had no time to speak waits"
    assert [each.id for each in window.fresh] == [lived[1].id] and window.until == 7
    assert take(store, window.until, RULES, [3, 1, 0], now + 60).fates == {"learned": 1}


def test_a_backlog_of_stale_episodes_is_passed_over_and_does_not_stop_the_loop(tmp_path):
    """People may say more than a turn takes, again and again: then what lies next is of versions too far back."""
    store = Store(tmp_path / "s.db")
    store.write([*(visit(number, 0) for number in range(400)), *(visit(number, 3) for number in range(60))])
    window = take(store, 0, replace(RULES, most=10), [3, 2, 1, 0])
    assert window.fates["stale"] > 200 and len(window.fresh) == 10 and window.until < 460
    behind = take(store, window.until, replace(RULES, most=100), [3, 2, 1, 0])
    assert len(behind.fresh) > 20 and behind.until == 460


def test_a_held_out_user_is_never_learned_from(run):
    learned = set()
    for part in range(3):
        traffic(Store(run / "served.db"), 40, 40 * part, version=part, deployment=str(part))
        learned |= turn(run).learned.keys()
    users = {each.account for each in Store(run / "served.db").select() if each.id in learned}
    assert len(users) > 60 and not any(held_out(user, RULES.holdout) for user in users)


# --- the baseline


def test_the_baseline_leaves_out_the_episode_itself_so_the_gradient_keeps_its_mean():
    kinds, rewards = ["easy"] * 4 + ["hard"] * 4, [1.0, 0.9, 0.8, 0.9, -0.9, -1.0, -0.8, -0.7]
    before = RunningBaseline({"easy": (10.0, 9.0)}).of(kinds, rewards)
    changed = RunningBaseline({"easy": (10.0, 9.0)}).of(kinds, [*rewards[:-1], 1.0])
    assert changed[-1] == pytest.approx(before[-1]), "its own reward is no part of it"
    assert changed[-2] != before[-2]


def test_a_baseline_by_kind_takes_out_what_the_kind_is_worth():
    dice = random.Random(0)
    kinds = [dice.choice(["easy", "hard"]) for _ in range(400)]
    rewards = [(0.6 if kind == "easy" else -0.6) + dice.uniform(-0.3, 0.3) for kind in kinds]

    def spread(baselines):
        return sum((reward - base) ** 2 for reward, base in zip(rewards, baselines, strict=True))

    assert spread(RunningBaseline().of(kinds, rewards)) < 0.2 * spread(RunningBaseline().of(["one"] * 400, rewards))


def test_earlier_windows_fade_and_who_is_alone_has_no_baseline():
    known = RunningBaseline().after(["a"], [1.0])
    assert known.known == {"a": (1.0, 1.0)} and known.after([], []).known == {"a": (0.5, 0.5)}
    assert RunningBaseline().of(["a"], [1.0]) == [None]
    assert known.of(["b"], [0.0]) == [1.0], "a kind that nobody knows leans on all"


# --- a turn


def test_a_turn_learns_from_what_people_liked_and_leaves_a_record(run):
    traffic(Store(run / "served.db"), 40)
    cycle = turn(run)
    assert (cycle.outcome, cycle.base, cycle.version, cycle.stage) == ("promoted", 0, 1, "done")
    assert cycle.fates["learned"] == len(cycle.learned) and set(cycle.learned.values()) == {-1.0, 1.0}
    assert {"learn", "judge"} <= cycle.seconds.keys() and cycle.served["version 0"]["episodes"] == 40
    assert Deployments(run).read().incumbent.version == 1
    old, new = Network.load(run / "model"), Network.load(Cycles(run).model(1))
    assert old.digest() != new.digest() and Cycles(run).last() == cycle


class Killed(BaseException):
    """What a test kills with: nothing may catch it."""


@pytest.mark.parametrize("moment", range(9))
def test_a_turn_that_is_killed_at_any_step_goes_on_and_uses_nothing_twice(run, monkeypatch, moment):
    traffic(Store(run / "served.db"), 30)
    left = [moment]

    def deadly(owner, name, late):
        inner = getattr(owner, name)

        def step(*words, **named):
            left[0] -= 1
            if left[0] < 0 and not late:
                raise Killed
            result = inner(*words, **named)
            if left[0] < 0:
                raise Killed
            return result

        monkeypatch.setattr(owner, name, step)

    for owner, name in ((Cycles, "keep"), (Learner, "learn"), (Network, "save"), (Deployments, "promote")):
        deadly(owner, name, late=True)
    deadly(Deployments, "check", late=False)
    with pytest.raises(Killed):
        for _ in range(9):
            turn(run)
            traffic(Store(run / "served.db"), 30, 1000, version=1, deployment="1")
    monkeypatch.undo()
    last = Cycles(run).last()
    if last is None or last.stage != "done":
        turn(run)
    every = [id for cycle in Cycles(run).all() for id in cycle.learned]
    first = {each.id for each in Store(run / "served.db").select() if not held_out(each.account, RULES.holdout)}
    assert len(every) == len(set(every)) and set(every) <= first
    assert Deployments(run).read().incumbent.version in (0, *(each.version for each in Cycles(run).all()))
    assert all(cycle.outcome == "promoted" for cycle in Cycles(run).all())


def test_a_store_that_is_written_to_while_it_is_read_loses_nothing(run):
    store = Store(run / "served.db")
    traffic(store, 20)
    first = turn(run)
    traffic(store, 20, 100, version=1, deployment="1")
    second = turn(run)
    assert first.until == second.after and not first.learned.keys() & second.learned.keys()
    assert sum(first.fates[f] + second.fates.get(f, 0) for f in ("learned", "heldout")) == 40


def test_feedback_that_comes_after_its_episode_was_used_changes_no_record(run):
    episodes = traffic(Store(run / "served.db"), 20)
    cycle = turn(run)
    Store(run / "served.db").listen([Feedback("late", next(iter(cycle.learned)), "vote", -1.0)])
    assert Cycles(run).last().learned == cycle.learned and episodes


def test_too_little_traffic_is_one_sentence(run):
    traffic(Store(run / "served.db"), 5)
    with pytest.raises(InputError, match=r"a turn waits for 8 episodes to learn from, and there are \d \(.*learned"):
        turn(run)
    assert Cycles(run).last() is None


def test_traffic_of_which_nothing_can_be_learned_is_passed_over_and_said(run):
    greedy, store = Sampling(temperature=0.0), Store(run / "served.db")
    store.write(visit(number, sampling=greedy) for number in range(20))
    says = r"and there are 0 \(\d heldout, \d+ unsampled\) .* say `trivium serve --temperature 1`"
    with pytest.raises(InputError, match=says):
        turn(run, rules=replace(RULES, most=10))
    traffic(store, 20, 20)
    assert turn(run, rules=replace(RULES, most=10)).fates["learned"] == 10


def test_what_a_detector_marks_counts_as_the_worst_and_is_said(run):
    traffic(Store(run / "served.db"), 40, liked=lambda number: True)
    where = Detector("where", lambda episode: episode.task.prompt.startswith("Where"), most=0.1)
    traffic(Store(run / "served.db"), 1, 500, liked=lambda number: False)
    cycle = turn(run, detectors=[where])
    assert len(cycle.alarms) == 1 and cycle.fates["quarantined"] == sum(value == -1 for value in cycle.learned.values()) > 10


# --- the gate and the canary


def test_a_candidate_that_is_held_is_learned_on_from_and_one_that_is_rejected_is_not(run):
    verdicts = iter(["hold", "reject", "promote"])

    async def examine(*_):
        return Decision(next(verdicts), "so it is")

    bases = []
    for part in range(3):
        traffic(Store(run / "served.db"), 30, 100 * part)
        cycle = turn(run, examine=examine)
        bases.append((cycle.base, cycle.version, cycle.outcome))
    assert bases == [(0, 1, "held"), (1, 2, "rejected"), (0, 3, "promoted")]
    assert [change.version for change in Deployments(run).read().changes] == [0, 3]


def test_a_turn_that_learns_nothing_leaves_a_held_candidate_to_be_learned_on_from(run):
    async def examine(*_):
        return Decision("hold", "so it is")

    traffic(Store(run / "served.db"), 30)
    held = turn(run, examine=examine)
    Cycles(run).keep(replace(held, number=2, base=1, version=2, after=held.until, outcome="nothing"))
    traffic(Store(run / "served.db"), 30, 100)
    assert (held.outcome, held.version, turn(run, examine=examine).base) == ("held", 1, 1)


def test_a_candidate_from_elsewhere_that_is_held_is_not_learned_on_from(run):
    async def examine(*_):
        return Decision("hold", "so it is")

    traffic(Store(run / "served.db"), 30)
    elsewhere = asyncio.run(loop(run, examine).try_out(run / "model", "a friend's"))
    own = turn(run, examine=examine)
    assert (elsewhere.outcome, elsewhere.version, own.base, own.version) == ("held", 1, 0, 2)


def test_a_candidate_from_elsewhere_that_was_stopped_is_gone_on_with(run):
    async def killed(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(loop(run, killed).try_out(run / "model", "a friend's"))
    with pytest.raises(InputError, match=f"cycle 1 is under way: `trivium live {run}` brings it to its end"):
        asyncio.run(loop(run).try_out(run / "model", "another's"))
    cycle = asyncio.run(loop(run).try_out(run / "model", "a friend's"))
    assert (cycle.number, cycle.version, cycle.outcome, cycle.learned) == (1, 1, "promoted", {})


def test_a_runs_folder_is_no_candidate(run):
    with pytest.raises(InputError, match=rf"holds no weights: no \*.safetensors there \(its model is {run / 'model'}\)"):
        asyncio.run(loop(run).try_out(run, "by mistake"))
    assert Cycles(run).last() is None and not Cycles(run).model(1).exists()


def test_weights_that_are_not_finite_are_rejected_before_anything_is_measured(run, tmp_path):
    broken = Network.load(run / "model")
    broken.load_state({name: tensor.clone().fill_(float("nan")) for name, tensor in broken.state().items()})
    broken.save(tmp_path / "broken")
    cycle = asyncio.run(loop(run, examine=None).try_out(tmp_path / "broken", "by hand"))
    assert cycle.outcome == "rejected" and "not finite" in cycle.reason and cycle.origin == "by hand"


def test_an_incumbent_that_is_gone_is_one_sentence(run):
    traffic(Store(run / "served.db"), 30)
    live = loop(run)
    live.deployments.begin(live.deployments.release(0, run / "model"))
    (run / "model").rename(run / "elsewhere")
    with pytest.raises(InputError, match="version 0 of .* is gone"):
        asyncio.run(live.cycle())


@pytest.mark.parametrize(("better", "outcome"), [(True, "promoted"), (False, "rolled_back")])
def test_the_canary_decides_by_what_the_people_whom_it_serves_say(run, better, outcome):
    traffic(Store(run / "served.db"), 30)
    live = loop(run, share=0.5)
    watch = live._watch

    async def meanwhile(cycle):
        assert Deployments(run).read().candidate.version == 1
        for number in range(100, 400):
            tried = number % 2 == 0
            traffic(
                live.store, 1, number, lambda _, tried=tried: tried is better, version=int(tried), deployment=str(int(tried))
            )
        return await watch(cycle)

    live._watch = meanwhile
    cycle = asyncio.run(live.cycle())
    assert cycle.outcome == outcome and cycle.canary["verdict"] == ("promote" if better else "reject")
    assert Deployments(run).read().incumbent.version == int(better)


@pytest.mark.parametrize("by", ["a person", "an alarm"])
def test_a_canary_is_rolled_back_by_a_person_and_by_an_alarm(run, by, monkeypatch):
    monkeypatch.setattr("trivium.loops.live.POLL", 0.01)
    traffic(Store(run / "served.db"), 30)
    live = loop(run, share=0.5, detectors=[Detector("sixes", lambda episode: "6" in episode.task.prompt, most=0.5)])
    live.trying = replace(live.trying, patience=60.0)
    see, looks = live._see, itertools.count()

    async def meanwhile(*told):
        """A person acts at the third look; an alarm is of all looks together, for each finds few episodes."""
        look = next(looks)
        if by == "a person" and look == 2:
            Deployments(run).rollback("a person saw it")
        if by == "an alarm":
            traffic(live.store, 8, 600 + 8 * look, version=1, deployment="1")
        return await see(*told)

    live._see = meanwhile
    cycle = asyncio.run(live.cycle())
    assert cycle.outcome == "rolled_back" and Deployments(run).read().withdrawn == (1,)
    assert ("a person saw it" if by == "a person" else "sixes") in cycle.reason
