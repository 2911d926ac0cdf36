"""benchmarks/train_step.py compares sides that do the same work: one gradient, and TRL is given every token of every row."""

from __future__ import annotations

import pytest
import torch

from benchmarks.train_step import batch_rows, learn, padding, trl_inputs
from tests.train.house import groups, network, record
from trivium.train import Batch


@pytest.fixture
def model(tmp_path) -> str:
    network(dtype=torch.float32).save(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def batch() -> Batch:
    made = groups(count=2)
    record(network(dtype=torch.float32), [episode for group in made for episode in group.episodes])
    return Batch(made)


def test_all_sides_compute_one_gradient(model, batch):
    rows = batch_rows(batch)
    prefixes, packed = (learn(model, batch, side, bfloat16=False)["grad_norm"] for side in ("prefixes", "packed"))
    side = padding(model, rows)
    assert side.step(rows)["grad_norm"] == pytest.approx(prefixes, rel=1e-4) == packed


def test_trl_reads_every_row_as_it_is(batch):
    rows = batch_rows(batch)
    given = trl_inputs(rows, 1)
    for at, row in enumerate(rows):
        prompt = given["prompt_ids"][at][given["prompt_mask"][at].bool()]
        real = given["completion_mask"][at].bool()
        assert [*prompt.tolist(), *given["completion_ids"][at][real].tolist()] == row["tokens"]
        assert [False] * len(prompt) + given["tool_mask"][at][real].bool().tolist() == row["mask"]
