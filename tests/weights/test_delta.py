"""The codec of one delta: any bits in, the same bits out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.errors import CorruptError, InputError
from trivium.nn.network import digest
from trivium.weights.delta import decode, encode

DTYPES = (torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.int64, torch.uint8)


def bits(rng: np.random.Generator, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Uniform bits: NaNs with payloads, infinities and both zeros among them."""
    made = torch.empty(shape, dtype=dtype)
    made.flatten().view(torch.uint8).numpy()[:] = rng.integers(0, 256, made.numel() * dtype.itemsize, dtype=np.uint8)
    return made


def changed(rng: np.random.Generator, tensor: torch.Tensor, share: float) -> torch.Tensor:
    other = bits(rng, list(tensor.shape), tensor.dtype).flatten()
    keep = torch.from_numpy(rng.random(tensor.numel()) >= share)
    other[keep] = tensor.flatten()[keep]
    return other.reshape(tensor.shape)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=4),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=4, max_size=4),
    share=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
)
def test_any_bits_come_back(seed, shapes, dtypes, share):
    rng = np.random.default_rng(seed)
    old = {f"t{n}": bits(rng, shape, dtype) for n, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))}
    new = {name: changed(rng, tensor, share) for name, tensor in old.items()}
    before = digest(old)
    assert digest(decode(encode(new))) == digest(new)
    assert digest(decode(encode(new, old), old)) == digest(new)
    assert digest(old) == before


def test_nan_payloads_and_the_sign_of_zero_are_changes():
    old = {"w": torch.tensor([0x7FC00000, 0, 5], dtype=torch.int32).view(torch.float32)}
    new = {"w": torch.tensor([0x7FC00001, -(2**31), 5], dtype=torch.int32).view(torch.float32)}
    assert decode(encode(new, old), old)["w"].view(torch.int32).tolist() == [0x7FC00001, -(2**31), 5]


def test_no_change_is_nearly_nothing_and_a_change_of_a_last_place_is_small():
    old = {"w": torch.randn(400, 250, generator=torch.Generator().manual_seed(0)).bfloat16()}
    assert len(encode(old, old)) < 100
    new = {"w": old["w"].clone()}
    new["w"].view(torch.int16).flatten()[::100] += 1
    assert len(encode(new, old)) < 0.01 * 2 * old["w"].numel()


def test_other_shapes_are_refused():
    with pytest.raises(InputError, match="shapes differ"):
        encode({"w": torch.zeros(3)}, {"w": torch.zeros(2)})
    with pytest.raises(CorruptError):
        decode(encode({"w": torch.ones(3)}, {"w": torch.zeros(3)}), {"w": torch.zeros(2)})


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_torn_object_is_refused(cut):
    data = encode({"w": torch.arange(50.0)}, {"w": torch.zeros(50)})
    with pytest.raises(CorruptError):
        decode(data[: int(cut * len(data))], {"w": torch.zeros(50)})
