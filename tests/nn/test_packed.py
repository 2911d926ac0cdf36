"""Attention over rows that share what they begin with: what each row gets alone, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from trivium.nn import Packed, packed

RUNS = {
    "nothing shared": ([5, 1, 9], [0, 0, 0]),
    "one prompt": ([5, 6, 3, 9], [0, 4, 3, 3]),
    "a row that another begins with": ([4, 7, 7, 2], [0, 4, 7, 2]),
    "back to an older fork": ([9, 8, 6, 9, 3], [0, 6, 2, 2, 0]),
    "more than a block": ([300, 310, 150, 400], [0, 290, 140, 150]),
}


@pytest.mark.parametrize("memory", [0, packed.MEMORY], ids=["computed again", "kept"])
@pytest.mark.parametrize("lengths, shared", RUNS.values(), ids=RUNS)
def test_a_row_gets_what_it_gets_alone(lengths, shared, memory, monkeypatch):
    monkeypatch.setattr(packed, "MEMORY", memory)
    torch.manual_seed(0)
    view = Packed(lengths, shared)
    run = len(view.positions)
    q, k, v = (torch.randn(1, h, run, 8, dtype=torch.float64, requires_grad=True) for h in (4, 2, 2))
    ours, theirs = view.attend(0, q, k, v, 0.3), torch.zeros(1, run, 4, 8, dtype=torch.float64)
    for row in range(len(lengths)):
        at = view.places(row)
        alone = scaled_dot_product_attention(*(x[:, :, at] for x in (q, k, v)), is_causal=True, scale=0.3, enable_gqa=True)
        theirs = theirs.index_copy(1, at[shared[row] :], alone.transpose(1, 2)[:, shared[row] :])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(ours)
    mine, others = (torch.autograd.grad((x * upstream).sum(), (q, k, v)) for x in (ours, theirs))
    torch.testing.assert_close(mine, others, rtol=1e-12, atol=1e-12)


def test_where_tokens_stand():
    """The docstring's example."""
    view = Packed([4, 3, 2], [0, 2, 0])
    assert view.positions.tolist() == [0, 1, 2, 3, 2, 0, 1]
    assert [view.places(row).tolist() for row in range(3)] == [[0, 1, 2, 3], [0, 1, 4], [5, 6]]
