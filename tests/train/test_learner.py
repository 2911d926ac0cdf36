"""The learner: it imitates, it moves probability the right way, it counts, it refuses."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import threading

import numpy as np
import pytest
import torch

from tests.train.house import VOCABULARY, episode, gradients, groups, learner, network, record
from trivium.errors import InputError, LawError, Unsupported
from trivium.trace import Row, Sampling
from trivium.train import (
    CISPO,
    GRPO,
    RFT,
    SFT,
    TABLE,
    AdamW,
    Algorithm,
    Batch,
    Composer2,
    Compute,
    DrGRPO,
    Group,
    Kimi,
    Learner,
)
from trivium.train.algorithms import Tokens, kimi, ppo, with_k3
from trivium.train.batch import lessons, pack, share_prefixes, split


def test_weights_that_would_round_small_steps_away_are_refused():
    with pytest.raises(InputError, match="rounded away in 16 bits"):
        Learner(network(dtype=torch.bfloat16), SFT(), 1e-5)


def small() -> list:
    rng = random.Random(4)
    return [episode(f"t{number}/0", rng) for number in range(4)]


def likelihood(net, episodes) -> float:
    copies = [dataclasses.replace(e, threads=[_copy(t) for t in e.threads]) for e in episodes]
    record(net, copies)
    return sum(x for e in copies for x in e.agent.segments[0].logprobs if not math.isnan(x))


def _copy(thread):
    return dataclasses.replace(thread, segments=[dataclasses.replace(s, logprobs=[*s.logprobs]) for s in thread.segments])


@pytest.mark.parametrize("autocast", [False, True])
def test_sft_overfits_a_tiny_batch(autocast):
    student = Learner(network(dtype=torch.float32), SFT(), 1e-2, compute=Compute(autocast=autocast))
    batch = Batch.imitate(small())
    losses = [asyncio.run(student.step(batch)).metrics["loss"] for _ in range(40)]
    assert losses[0] > 2.0 and losses[-1] < 0.05
    assert student.version == 40


def test_autocast_changes_a_gradient_by_no_more_than_bfloat16_rounds():
    batch = Batch(groups())
    record(network(dtype=torch.float32), [e for g in batch.groups for e in g.episodes], noise=0.1)
    found = []
    for autocast in (False, True):
        seen, _ = gradients(learner(network(dtype=torch.float32), CISPO(), autocast=autocast), batch)
        found.append(torch.cat([g.flatten() for g in seen[0].values()]))
    plain, rounded = found
    assert 0 < (rounded - plain).norm() < 0.05 * plain.norm()


GRADIENTS = [row for row in TABLE if row.name not in ("sft", "rft")]


@pytest.mark.parametrize("algorithm", GRADIENTS, ids=lambda row: row.name)
def test_probability_moves_the_way_of_the_reward(algorithm):
    net = network(dtype=torch.float32)
    good, bad = (episode(f"t/{sample}", random.Random(sample)) for sample in range(2))
    record(net, [good, bad])
    before = [likelihood(net, [good]), likelihood(net, [bad])]
    student = learner(net, algorithm)
    for _ in range(3):
        student.learn(Batch([Group("t", [good, bad], [1.0, 0.0])]))
    assert likelihood(net, [good]) > before[0] and likelihood(net, [bad]) < before[1]


def test_rejection_sampling_learns_from_the_best_alone():
    net, other = network(dtype=torch.float32), network(dtype=torch.float32)
    good, bad, worse = (episode(f"t/{sample}", random.Random(sample)) for sample in range(3))
    record(net, [good, bad, worse])
    learner(net, RFT()).learn(Batch([Group("t", [good, bad], np.array([1.0, 0.0]))]))  # rewards in an array are rewards
    learner(other, RFT()).learn(Batch([Group("t", [good, worse], [1.0, 0.3])]))
    (alone,), metrics = gradients(learner(network(), RFT()), Batch([Group("t", [good, bad], [1.0, 0.0])]))
    (imitated,), _ = gradients(learner(network(), SFT()), Batch([Group("t", [good], [1.0])]))
    assert metrics["episodes"] == 1
    assert all(torch.equal(alone[name], imitated[name]) for name in imitated)
    assert max((a - b).abs().max() for a, b in zip(net.parameters(), other.parameters(), strict=True)) < 1e-5


def test_on_policy_numbers():
    """Sampled by the same weights: ratio 1, no gap, nothing clipped, and the loss of centred advantages near zero."""
    net, batch = network(), Batch(groups())
    record(net, [e for g in batch.groups for e in g.episodes])
    _, metrics = gradients(learner(net, CISPO(), substeps=4), batch)
    assert metrics["ratio"] == pytest.approx(1, abs=1e-5) and metrics["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["gap_max"] < 1e-6 and metrics["clipped"] == 0
    assert metrics["updates"] == 4 and metrics["episodes"] == 9 and metrics["groups"] == 3
    assert metrics["staleness_max"] == 0 and metrics["staleness"] < 0  # turns stand for versions 0, 1, 2


def test_substeps_drift_from_the_recorded_policy():
    """After the first of four substeps ratios leave 1, and a large step is seen as clipped tokens."""
    net, batch = network(dtype=torch.float32), Batch(groups())
    record(net, [e for g in batch.groups for e in g.episodes])
    metrics = Learner(net, GRPO(), 3e-2, optimizer=AdamW(substeps=4)).learn(batch).metrics
    assert metrics["gap_max"] < 1e-4 < abs(metrics["ratio_max"] - 1)
    assert metrics["clipped"] > 0


@pytest.mark.parametrize("algorithm", [GRPO(), Kimi(-5, 5, 0.1), DrGRPO()], ids=lambda row: row.name)
def test_gradient_by_finite_differences(algorithm):
    """d loss / d weight of the whole learner, from first principles (losses without a stop-gradient)."""
    net, batch = network(), Batch(groups(count=1))
    record(net, [e for g in batch.groups for e in g.episodes], noise=0.3)
    student = learner(net, algorithm)
    (gradient,), _ = gradients(student, batch)
    for name, place in (("model.layers.0.mlp.up_proj.weight", (3, 5)), ("model.embed_tokens.weight", (9, 1))):
        weight = dict(net.model.named_parameters())[name].data
        losses = []
        for change in (1e-3, -2e-3):
            weight[place] += change
            losses.append(gradients(student, batch)[1]["loss"])
        weight[place] += 1e-3
        assert (losses[0] - losses[1]) / 2e-3 == pytest.approx(float(gradient[name][place]), rel=1e-2, abs=2e-5)


@pytest.mark.parametrize("loss", [ppo(0.2, 0.2), kimi(-0.3, 0.3, 0.1), with_k3(ppo(0.1, 0.3), 0.5)])
def test_losses_by_finite_differences(loss):
    torch.manual_seed(0)
    old, reference, advantage = (torch.randn(12, dtype=torch.float64) for _ in range(3))
    new = (old + 0.5 * torch.randn(12)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(Tokens(x, old, advantage, reference=reference))[0], (new,))


def test_k1_pulls_towards_the_reference():
    """Equal advantages of zero but a KL: tokens likelier here than under the reference are pushed down, others up."""
    tokens = Tokens(*(torch.tensor(x, requires_grad=i == 0) for i, x in enumerate(([-1.0, -2.0], [-1.0, -2.0], [0.0, 0.0]))))
    tokens = dataclasses.replace(tokens, reference=torch.tensor([-3.0, -0.5]))
    Composer2(kl=0.1).loss(tokens)[0].sum().backward()
    assert tokens.new.grad.tolist() == pytest.approx([0.2, -0.15])


def test_no_signal_is_counted_and_changes_nothing():
    net = network(dtype=torch.float32)
    student, before = learner(net, CISPO()), net.digest()
    dull = [Group(g.task_id, g.episodes, [0.25] * 3) for g in groups()]
    for batch in (Batch(dull), Batch([])):
        assert student.learn(batch).metrics["no_signal"] == 1
    assert student.version == 2 and net.digest() == before


def test_a_gradient_that_is_not_finite_is_skipped():
    net = network(dtype=torch.float32)
    broken = dataclasses.replace(SFT(), loss=lambda tokens: (tokens.new * math.inf, tokens.new > 0))
    student, before = learner(net, broken), net.digest()
    metrics = student.learn(Batch.imitate(small())).metrics
    assert metrics["updates_skipped"] == 1 and metrics["updates"] == 0 and metrics["no_signal"] == 0
    assert net.digest() == before
    student.algorithm = SFT()
    assert math.isfinite(student.learn(Batch.imitate(small())).metrics["grad_norm"]) and net.digest() != before


def test_schedule_and_clip():
    net, seen = network(dtype=torch.float32), []
    student = Learner(
        net, SFT(), 1e-3, optimizer=AdamW(schedule=lambda version: seen.append(version) or 0.0, max_grad_norm=1e-3)
    )
    before = net.digest()
    assert student.learn(Batch.imitate(small())).metrics["lr"] == 0.0
    assert net.digest() == before and seen[0] == 0


def test_a_gradient_is_cut_to_its_largest_norm():
    norms, told = [], []
    for most in (1e-3, math.inf):
        (seen,), metrics = gradients(
            Learner(network(), SFT(), 1e-3, optimizer=AdamW(max_grad_norm=most)), Batch.imitate(small())
        )
        norms.append(math.sqrt(sum(grad.square().sum().item() for grad in seen.values())))
        told.append(metrics["grad_norm"])
    assert norms[0] == pytest.approx(1e-3, rel=1e-3) and norms[1] > 1e-2
    assert told == pytest.approx([norms[1]] * 2, rel=1e-4), "told is the norm before it is cut"


def test_matrices_decay_and_vectors_do_not():
    net = network(dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in net.state().items()}
    student = Learner(
        net,
        dataclasses.replace(SFT(), loss=lambda tokens: (tokens.new * 0, tokens.new < 0)),
        0.1,
        optimizer=AdamW(weight_decay=0.5),
    )
    student.learn(Batch.imitate(small()))
    for name, tensor in net.state().items():
        assert torch.allclose(tensor, before[name] * (0.95 if tensor.dim() > 1 else 1.0)), name


@pytest.mark.parametrize("algorithm", TABLE[1:], ids=lambda row: row.name)
def test_a_text_only_policy_is_refused_by_name(algorithm):
    batch = Batch(groups())
    segment = batch.groups[1].episodes[2].agent.segments[0]
    segment.logprobs = [math.nan] * len(segment.tokens)
    student = learner(network(), algorithm)
    with pytest.raises(Unsupported, match=f"{algorithm.name} needs logprobs, episode task1/2, thread agent"):
        student.learn(batch)
    assert student.version == 0
    learner(network(), SFT()).learn(batch)


def test_greedy_is_refused():
    batch = Batch(groups())
    batch.groups[0].episodes[0].agent.segments[0].sampling = Sampling(temperature=0.0)
    with pytest.raises(Unsupported, match="greedily"):
        learner(network(), CISPO()).learn(batch)


def test_a_temperature_is_learned_at():
    """Tokens sampled at temperature 0.7 have ratio 1 only if the learner divides by it too."""
    net, batch = network(), Batch(groups(count=1))
    for made in batch.groups[0].episodes:
        segment = made.agent.segments[0]
        segment.sampling = Sampling(temperature=0.7)
    _record_at(net, batch, 0.7)
    assert gradients(learner(net, CISPO()), batch)[1]["gap_max"] < 1e-6


@torch.no_grad()
def _record_at(net, batch, temperature: float) -> None:
    from trivium.nn import Packed

    for segment in (e.agent.segments[0] for g in batch.groups for e in g.episodes):
        tokens, view = torch.tensor(segment.tokens), Packed([len(segment.tokens)])
        logits = net.logits(net.hidden(tokens, view.positions, view)) / temperature
        said = logits[:-1].log_softmax(-1).gather(-1, tokens[1:, None])[:, 0].tolist()
        segment.logprobs = [math.nan if math.isnan(x) else said[i - 1] for i, x in enumerate(segment.logprobs)]


def test_refused_at_start():
    with pytest.raises(Unsupported, match="composer2 needs a reference"):
        Learner(network(), Composer2(), 1e-3)
    Learner(network(), Composer2(kl=0), 1e-3)
    with pytest.raises(Unsupported, match="cispo does not read"):
        Learner(network(), CISPO(), 1e-3, reference=network())
    with pytest.raises(InputError):
        Learner(network(), CISPO(), 1e-3, policies="agent")
    for wrong in ({"max_grad_norm": 0.0}, {"max_grad_norm": -1.0}, {"momentum": 1.0}, {"momentum": -0.1}):
        with pytest.raises(InputError, match="math.inf clips nothing"):
            AdamW(**wrong)
    for decay in (-0.5, math.nan, math.inf):
        with pytest.raises(InputError, match="weight_decay from 0"):
            AdamW(weight_decay=decay)
    for lr in (-1e-3, math.nan, math.inf):
        with pytest.raises(InputError, match="a learning rate is 0 or more"):
            Learner(network(), CISPO(), lr)
    for group, wrong in ((AdamW, {"substeps": 0}), (Compute, {"micro_tokens": 0})):
        with pytest.raises(InputError, match="at least 1"):
            group(**wrong)
    with pytest.raises(InputError, match="load it with Network.load"):
        Learner("nano", CISPO(), 1e-3)
    with pytest.raises(InputError, match=r"made of groups, .* not of Episode"):
        Batch(small()[:1])
    with pytest.raises(InputError, match="group t"):
        Group("t", [], [1.0])
    with pytest.raises(InputError, match="finite"):
        Group("t", small()[:1], [math.nan])


def test_a_sampled_token_without_context_is_a_broken_law():
    made = small()[0]
    made.agent.segments[0].spans = [dataclasses.replace(s, kind="sampled") for s in made.agent.segments[0].spans]
    with pytest.raises(LawError, match="no context"):
        lessons(Batch.imitate([made]), SFT(), {"agent"})


def test_first_fit_decreasing():
    bins = pack([3, 9, 5, 5, 12, 1], budget=10)
    assert bins == [[4], [1, 5], [2, 3], [0]]
    assert pack([], 10) == []


def test_substeps_hold_whole_episodes_dealt_in_turn():
    found, _ = lessons(Batch(groups()), SFT(), {"agent"})
    parts = split(found, 4, offset=2)
    assert [len(part) for part in parts] == [2, 2, 3, 2]
    assert parts[2][0] is found[0] and parts[3][0] is found[1]


def test_a_branch_is_learned_from_in_the_step_of_what_it_left():
    found, _ = lessons(Batch(groups()), SFT(), {"agent"})
    branches = [
        dataclasses.replace(lesson, episode=f"{lesson.episode}+0.9", parent=lesson.episode)
        for lesson in found[:3]
        for _ in "ab"
    ]
    parts = split([*found, *branches], 4, offset=2)
    assert [[lesson.episode for lesson in part if not lesson.parent] for part in parts] == [
        [lesson.episode for lesson in part] for part in split(found, 4, offset=2)
    ]
    for part in parts:
        assert {lesson.parent for lesson in part if lesson.parent} <= {lesson.episode for lesson in part}


def test_same_seed_same_run():
    def run() -> str:
        net, batch = network(dtype=torch.float32), Batch(groups())
        record(net, [e for g in batch.groups for e in g.episodes], noise=0.1)
        student = learner(net, CISPO(), substeps=2)
        for _ in range(3):
            asyncio.run(student.step(batch))
        return net.digest()

    assert run() == run()


def test_an_algorithm_of_ones_own_is_three_functions():
    def best_of(rewards):
        return (rewards == rewards.max()).to(rewards.dtype)

    own = Algorithm("best_of", best_of, SFT().loss, DrGRPO(length=8).normaliser)
    batch = Batch(groups())
    record(network(), [e for g in batch.groups for e in g.episodes])
    assert learner(network(), own).learn(batch).metrics["updates"] == 1


def test_shared_prefixes_are_told_once():
    """Rows in order of their tokens; a row that begins with another shares all of it; temperatures do not mix."""
    rows = [row([1, 2, 3]), row([1, 2, 4, 5]), row([7]), row([1, 2]), row([1, 2, 3], temperature=0.5)]
    (chosen, shared), (last, alone) = share_prefixes([(one, 0) for one in rows], budget=8)
    assert [one.tokens.tolist() for one, _ in chosen] == [[1, 2, 3], [1, 2], [1, 2, 3], [1, 2, 4, 5]]
    assert [one.temperature for one, _ in chosen] == [0.5, 1.0, 1.0, 1.0]
    assert shared == [0, 0, 2, 2] and [one.tokens.tolist() for one, _ in last] == [[7]] and alone == [0]


def row(tokens: list[int], temperature: float = 1.0) -> Row:
    nothing = np.zeros(len(tokens))
    return Row("e", "agent", 0, np.array(tokens, np.int32), nothing > 0, nothing, nothing, temperature)


def test_a_step_that_broke_half_way_leaves_nothing_to_the_next(monkeypatch):
    whole, torn = (Learner(network(), DrGRPO(), 1e-2, compute=Compute(micro_tokens=4, share=False)) for _ in range(2))
    batch, other = Batch(groups()), Batch(groups(seed=1))
    backward, done = torn._backward, []

    def breaks(*arguments):
        if done:
            raise torch.OutOfMemoryError("no memory left")
        done.append(backward(*arguments))

    monkeypatch.setattr(torn, "_backward", breaks)
    with pytest.raises(torch.OutOfMemoryError):
        torn.learn(other)
    monkeypatch.undo()
    assert torn.learn(batch).metrics["grad_norm"] == whole.learn(batch).metrics["grad_norm"]
    assert torn.network.digest() == whole.network.digest()


def test_a_cancelled_step_ends_before_the_next_begins(monkeypatch):
    student, batch = Learner(network(), DrGRPO(), 1e-2), Batch(groups())
    learn, going, go_on, most = student._learn, [], threading.Event(), []

    def watched(batch):
        going.append(1)
        most.append(len(going))
        go_on.wait(30)
        made = learn(batch)
        going.pop()
        return made

    monkeypatch.setattr(student, "_learn", watched)

    async def main():
        first = asyncio.create_task(student.step(batch))
        while not going:
            await asyncio.sleep(0.001)
        first.cancel()
        second = asyncio.create_task(student.step(batch))
        await asyncio.sleep(0.05)
        go_on.set()
        return await second

    assert asyncio.run(main()).version == 2 and most == [1, 1]


def test_a_network_is_no_reference_for_itself():
    net = network()
    with pytest.raises(InputError, match="load it twice"):
        Learner(net, Composer2(kl=0.1), 1e-2, reference=net)


def test_an_algorithm_of_ones_own_is_held_to_its_shapes():
    batch = Batch(groups())
    for credit in (lambda rewards: rewards[:1], lambda rewards: rewards * math.nan):
        own = dataclasses.replace(DrGRPO(), name="own", credit=credit)
        with pytest.raises(InputError, match="own's credit of .* a finite number each"):
            Learner(network(), own, 1e-2).learn(batch)
    summed = lambda tokens: (tokens.new.sum(), tokens.new > 0)  # noqa: E731
    marked = lambda tokens: (tokens.new, torch.tensor(False))  # noqa: E731
    for part, wrong, told in (
        ("loss", lambda tokens: tokens.new, "loss gives no pair"),
        ("loss", lambda tokens: (tokens.new, None), "loss gives NoneType None, not one number"),
        ("loss", lambda tokens: (tokens.old, tokens.old > 0), "loss does not depend on `new`"),
        ("normaliser", lambda counts: 1.0, "normaliser gives float 1.0, not one number"),
        ("credit", lambda rewards: rewards.tolist(), "credit gives list"),
    ):
        with pytest.raises(InputError, match=told):
            Learner(network(), dataclasses.replace(DrGRPO(), name="own", **{part: wrong}), 1e-2).learn(batch)
    for part, wrong in (("loss", summed), ("loss", marked), ("normaliser", lambda counts: torch.tensor(1.0))):
        student = Learner(network(), dataclasses.replace(DrGRPO(), name="own", **{part: wrong}), 1e-2)
        before = student.network.digest()
        with pytest.raises(InputError, match=rf"own's {part} gives a tensor \[\], not one number for each"):
            student.learn(batch)
        assert student.network.digest() == before
    with pytest.raises(InputError, match=r"as in CISPO\(\)"):
        Learner(network(), CISPO, 1e-2)


def test_momentum_is_the_first_beta():
    pupils = [Learner(network(), DrGRPO(), 1e-2, optimizer=AdamW(momentum=momentum)) for momentum in (0.9, 0.0)]
    for pupil in pupils:
        for seed in range(2):
            pupil.learn(Batch(groups(seed)))
    assert [pupil.optimizer.param_groups[0]["betas"][0] for pupil in pupils] == [0.9, 0.0]
    assert pupils[0].network.digest() != pupils[1].network.digest()


def test_what_a_network_cannot_have_said_is_refused():
    net, one = network(dtype=torch.float32), learner(network(dtype=torch.float32), CISPO())
    before = one.network.digest()
    strange, certain = groups(), groups()
    strange[0].episodes[1].agent.segments[0].tokens[0] = VOCABULARY
    record(net, [e for g in certain for e in g.episodes])
    said = certain[0].episodes[1].agent.segments[0]
    said.logprobs[next(iter(said.sampled())).start] = -math.inf
    with pytest.raises(InputError, match=f"a token that this network, of {VOCABULARY}"):
        one.learn(Batch(strange))
    with pytest.raises(Unsupported, match="needs logprobs"):
        one.learn(Batch(certain))
    assert one.network.digest() == before


@pytest.mark.parametrize("share", [True, False])
def test_layers_computed_again_give_the_same_gradient_bit_for_bit(share):
    """And forward keeps less of them."""
    batch, saved = Batch(groups()), {}
    results = {}
    for recompute in (False, True):
        learns = learner(network(dtype=torch.float32), DrGRPO(), recompute=recompute, share=share)
        sizes = saved[recompute] = []

        def keep(tensor, sizes=sizes):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            results[recompute] = gradients(learns, batch)[0]
    for plain, again in zip(results[False], results[True], strict=True):
        assert all(torch.equal(plain[name], again[name]) for name in plain)
    assert sum(saved[True]) < 0.8 * sum(saved[False])
