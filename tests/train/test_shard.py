"""FSDP2: a network spread over two processes takes the steps of one process, and is kept and published whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.train.house import learner, network
from tests.train.test_data_parallel import everything
from trivium.errors import InputError
from trivium.nn import Network, Packed, shard
from trivium.train import CISPO, GSPO, Batch, Checkpoints
from trivium.train.learner import Learner

SHARES = {"uneven": (slice(0, 1), slice(1, 4)), "one rank empty": (slice(0, 4), slice(4, 4))}
CASES = [(CISPO(), "uneven"), (GSPO(0.2, 0.2), "one rank empty")]
IDS = [f"{algorithm.name}, {share}" for algorithm, share in CASES]
STEPS = 2


def student(net: Network, algorithm) -> Learner:
    return learner(net, algorithm, substeps=2, micro_tokens=40, max_grad_norm=1.0)


def outcome(one: Learner, metrics: list[dict], before: dict) -> dict:
    return {
        "change": {name: value - before[name] for name, value in one.network.state().items()},
        "moments": {name: value.clone() for name, value in one.optimizer_state().items()},
        "metrics": metrics,
        "said": said(one.network),
        "digest": one.network.digest(),
    }


@torch.no_grad()
def said(net: Network) -> torch.Tensor:
    tokens, view = torch.arange(9), Packed([9])
    return net.logprobs(net.hidden(tokens, view.positions, view)[:-1], tokens[1:])[0]


def run(algorithm, part: slice, spread) -> tuple[Learner, dict]:
    net = network(dtype=torch.float32)
    before = {name: value.clone() for name, value in net.state().items()}
    one, batch = student(spread(net), algorithm), Batch(everything()[part])
    metrics = [one.learn(batch).metrics for _ in range(STEPS)]
    return one, outcome(one, metrics, before)


def rank_main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    found = {}
    for algorithm, share in CASES:
        one, found[algorithm.name] = run(algorithm, SHARES[share][rank], shard)
    found["elements"] = sum(p.to_local().numel() for p in one.network.parameters())
    found["resumed"] = resumed(one, Path(folder))
    torch.save(found, f"{folder}/found.{rank}")
    dist.destroy_process_group()


def resumed(one: Learner, folder: Path) -> bool:
    """Saved by both ranks and loaded into another spread learner, the next step is the same."""
    kept, other = Checkpoints(folder / "kept"), student(shard(network(5, torch.float32)), one.algorithm)
    kept.save(one, {"step": STEPS})
    one.network.save(folder / "saved")
    dist.barrier()
    assert kept.load(other).user == {"step": STEPS}
    said(other.network)  # leaves the head gathered: a state read now must not be an old one
    batch = Batch(everything()[dist.get_rank() : dist.get_rank() + 1])
    for each in (one, other):
        each.learn(batch)
    return one.network.digest() == other.network.digest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(scope="module")
def ranks(folder):
    mp.start_processes(rank_main, args=(str(folder),), nprocs=2, join=True, start_method="spawn")
    return [torch.load(f"{folder}/found.{rank}") for rank in range(2)]


@pytest.mark.parametrize("algorithm, share", CASES, ids=IDS)
def test_two_ranks_with_half_the_weights_each_are_one_process(ranks, algorithm, share):
    _, alone = run(algorithm, slice(None), lambda net: net)
    one, two = (found[algorithm.name] for found in ranks)
    assert one["digest"] == two["digest"] and one["metrics"] == two["metrics"]
    for name, change in alone["change"].items():
        assert change.abs().max() > 1e-4, name
        torch.testing.assert_close(one["change"][name], change, rtol=0, atol=1e-6)
    assert one["moments"].keys() == alone["moments"].keys()
    for name, moment in alone["moments"].items():
        torch.testing.assert_close(one["moments"][name], moment, rtol=1e-4, atol=float(moment.abs().max()) * 1e-4)
    torch.testing.assert_close(one["said"], alone["said"], rtol=0, atol=1e-5)
    for mine, theirs in zip(one["metrics"], alone["metrics"], strict=True):
        for name in theirs.keys() - {"tokens_computed"}:  # rows on two ranks share nothing
            assert mine[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-6), name


def test_each_rank_holds_its_part_and_no_more(ranks):
    every = sum(p.numel() for p in network().parameters())
    parts = [found["elements"] for found in ranks]
    assert sum(parts) == every and max(parts) < 0.51 * every


def test_checkpoints_and_saved_folders_are_whole(ranks, folder):
    assert all(found["resumed"] for found in ranks)
    whole = Network.load(folder / "saved")
    assert whole.digest() == ranks[0][CASES[-1][0].name]["digest"]


def test_without_ranks_it_says_what_to_do():
    with pytest.raises(InputError, match="init_process_group"):
        shard(network())
