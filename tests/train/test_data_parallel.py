"""Law 3 over ranks: two processes, each with some of the groups, take the step of one process with all of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.train.house import gradients, groups, learner, network, record, recut
from trivium.errors import Unsupported
from trivium.train import CISPO, GRPO, GSPO, Batch, Group, Kimi

SHARES = {
    "even": (slice(0, 2), slice(2, 4)),
    "one rank empty": (slice(0, 4), slice(4, 4)),
    "uneven": (slice(0, 1), slice(1, 4)),
}
CASES = [(CISPO(), "even"), (GSPO(0.2, 0.2), "uneven"), (Kimi(), "uneven"), (GRPO(), "one rank empty")]
STEPS = 2


def everything() -> list[Group]:
    made = groups(count=4)
    made[1] = Group("dull", made[1].episodes, [0.5] * 3)
    record(network(dtype=torch.float32), [e for g in made for e in g.episodes], noise=0.3)
    return [Group(g.task_id, [recut(e, [7]) for e in g.episodes], g.rewards) for g in made]


def run(algorithm, part: slice) -> tuple[list[dict], dict, list[dict]]:
    """Each substep's gradient; then, after two steps of two substeps, each weight's change and the metrics."""
    batch, options = Batch(everything()[part]), dict(substeps=2, micro_tokens=40, max_grad_norm=1.0)
    gradient, _ = gradients(learner(network(), algorithm, **options), batch)
    net = network(dtype=torch.float32)
    before = {name: value.clone() for name, value in net.state().items()}
    student = learner(net, algorithm, **options)
    metrics = [student.learn(batch).metrics for _ in range(STEPS)]
    return gradient, {name: (value - before[name]) for name, value in net.state().items()}, metrics


def rank_main(rank: int, store: str, results: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    found = {(algorithm.name, share): run(algorithm, SHARES[share][rank]) for algorithm, share in CASES}
    found["refused"] = refused(rank)
    torch.save(found, f"{results}.{rank}")
    dist.destroy_process_group()


def refused(rank: int) -> str:
    """Only rank 1 has an episode without logprobs: both must say so, neither may hang."""
    made = everything()[:1]
    if rank == 1:
        segment = made[0].episodes[0].agent.segments[-1]
        segment.logprobs = [float("nan")] * len(segment.tokens)
    try:
        learner(network(), CISPO()).learn(Batch(made))
    except Unsupported as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.start_processes(
        rank_main, args=(str(folder / "store"), str(folder / "found")), nprocs=2, join=True, start_method="spawn"
    )
    return [torch.load(f"{folder / 'found'}.{rank}") for rank in range(2)]


@pytest.mark.parametrize("algorithm, share", CASES, ids=[f"{algorithm.name}, {share}" for algorithm, share in CASES])
def test_two_ranks_are_one_process(ranks, algorithm, share):
    gradient, alone, metrics = run(algorithm, slice(None))
    (summed, left, numbers), (_, right, others) = (found[algorithm.name, share] for found in ranks)
    assert numbers == others
    for one, two in zip(gradient, summed, strict=True):
        for name in one:
            torch.testing.assert_close(two[name], one[name], rtol=1e-6, atol=float(one[name].abs().max()) * 1e-6)
    for name, change in alone.items():
        assert torch.equal(left[name], right[name])
        torch.testing.assert_close(left[name], change, rtol=1e-4, atol=float(change.abs().max()) * 1e-4)
    for mine, theirs in zip(numbers, metrics, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            if name == "tokens_computed":  # rows on two ranks share nothing
                continue
            assert mine[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_an_error_on_one_rank_is_raised_on_all(ranks):
    assert ranks[0]["refused"] == ranks[1]["refused"] != ""
