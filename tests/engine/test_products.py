"""The CPU's kernel against attention as it is defined, context by context."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trivium.engine.cache import PAGE, Cache, Row
from trivium.engine.products import Reader, Speakers

SIZE = 16
lots = st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), st.integers(1, PAGE)), min_size=1, max_size=40)


def cache(heads: int, group: int, dtype=torch.float32) -> Cache:
    config = SimpleNamespace(head_dim=SIZE, num_key_value_heads=heads, num_attention_heads=heads * group, num_hidden_layers=1)
    made = Cache(config, slots=1, context=4 * PAGE, dtype=dtype)
    dice = torch.Generator().manual_seed(0)
    for held in (*made.keys, *made.values):
        held.copy_(torch.randn(held.shape, generator=dice))
    return made


def plain(q, keys, values, row: Row, scaling: float, own=None) -> torch.Tensor:
    """q [H, n, D] over the pages of `row`, and causally over its `own` keys and values -> [H, n, D]."""
    k, v = (torch.cat([held[page, :, :n] for page, n in zip(*row, strict=True)], 1) for held in (keys, values))
    mask = torch.zeros(q.shape[1], k.shape[1])
    if own:
        k, v = torch.cat([k, own[0]], 1), torch.cat([v, own[1]], 1)
        mask = torch.cat([mask, torch.full((q.shape[1],) * 2, float("-inf")).triu(1)], 1)
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    return (q @ k.transpose(1, 2) * scaling + mask).softmax(-1) @ v


@pytest.mark.parametrize("heads, group", [(1, 1), (2, 2), (1, 7)])
@given(seen=lots)
def test_pages_of_few_and_of_many_are_attention_over_their_tokens(heads, group, seen):
    held = cache(heads, group)
    rows = [Row(sorted(pages), [PAGE] * (len(pages) - 1) + [last]) for pages, last in seen]
    q = torch.randn(len(rows), heads * group, SIZE, generator=torch.Generator().manual_seed(1))
    ours = Speakers(held, rows).attend(q, held.keys[0], held.values[0], 0.3)
    wanted = [plain(one[:, None], held.keys[0], held.values[0], row, 0.3)[:, 0] for one, row in zip(q, rows, strict=True)]
    torch.testing.assert_close(ours, torch.stack(wanted), rtol=0, atol=3e-6)


def test_scores_too_large_for_their_exponential_are_attention_still():
    held = cache(2, 2)
    q = 1e4 * torch.randn(1, 4, SIZE, generator=torch.Generator().manual_seed(1))
    for sharers in (1, 12):
        row = Row([0, 3], [PAGE, 5])
        ours = Speakers(held, [row] * sharers).attend(q.expand(sharers, -1, -1), held.keys[0], held.values[0], 0.3)
        torch.testing.assert_close(ours[0], plain(q[0][:, None], held.keys[0], held.values[0], row, 0.3)[:, 0])


def test_in_sixteen_bits_it_is_attention_to_their_precision():
    held = cache(2, 2, torch.bfloat16)
    q = torch.randn(12, 4, SIZE, generator=torch.Generator().manual_seed(1)).bfloat16()
    rows = [Row([0, 1 + n % 3], [PAGE, 40 + n]) for n in range(12)]
    ours = Speakers(held, rows).attend(q, held.keys[0], held.values[0], 0.3)
    keys, values = held.keys[0].float(), held.values[0].float()
    wanted = [plain(one[:, None], keys, values, row, 0.3)[:, 0] for one, row in zip(q.float(), rows, strict=True)]
    torch.testing.assert_close(ours.float(), torch.stack(wanted), rtol=0, atol=0.02)


def test_a_reader_sees_its_past_and_of_itself_what_stands_left():
    held = cache(2, 2)
    dice = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, heads, 9, SIZE, generator=dice) for heads in (4, 2, 2))
    row = Row([2, 0, 3], [PAGE, 40, 7])
    ours = Reader(list(zip(*row, strict=True))).attend(q, k, v, held.keys[0], held.values[0], 0.3)
    wanted = plain(q[0], held.keys[0], held.values[0], row, 0.3, (k[0], v[0]))
    torch.testing.assert_close(ours.transpose(0, 1), wanted, rtol=0, atol=3e-6)
