"""Decoding steps recorded and played again, as CUDA graphs are, by a tape: the same passes, on a machine without a device."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trivium.engine import Engine, flex, view
from trivium.engine.cache import PAGE
from trivium.engine.graphs import Graphs
from trivium.nn import Network
from trivium.policy import View
from trivium.trace import Sampling


class Tape(TorchDispatchMode):
    """What a CUDA graph does, on a CPU: it keeps each operation with the tensors that it read and wrote, and plays them again
    on the same memory. All else, Python's numbers among it, stays what it was; what would wait for the device is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        name = op._schema.name
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::unique_dim"):
            raise AssertionError(f"{name} waits for the device: no CUDA graph may hold it")
        out = op(*args, **(kwargs or {}))
        self.calls.append((op, args, kwargs or {}, out))
        return out

    def play(self) -> None:
        for op, args, kwargs, held in self.calls:
            new = op(*args, **kwargs)
            pairs = [(held, new)] if isinstance(new, torch.Tensor) else zip(held or (), new or (), strict=True)
            for one, other in pairs:
                if isinstance(one, torch.Tensor) and one.data_ptr() != other.data_ptr():
                    one.copy_(other)


@pytest.fixture(scope="module")
def net(tiny_model) -> Network:
    return Network.load(tiny_model)


@pytest.fixture
def taped(monkeypatch) -> list[Tape]:
    """The device's kernel with its mask as it says it, for FlexAttention compiles itself; the tapes that were recorded."""

    def attend(q, keys, values, mask, scaling):
        rows, queries = q.shape[0], q.shape[2]
        places = torch.arange(keys.shape[0] * PAGE)
        seen = mask.mask_mod(torch.arange(rows)[:, None, None], 0, torch.arange(queries)[:, None], places)[:, None]
        keys, values = (held.transpose(0, 1).flatten(1, 2)[None].expand(rows, -1, -1, -1) for held in (keys, values))
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen, scale=scaling, enable_gqa=True)

    monkeypatch.setattr(flex, "_attend", attend)
    monkeypatch.setattr(view, "products", flex)
    return []


def record_on(tapes: list[Tape]):
    def record(run):
        with Tape() as tape:
            out = run()
        tapes.append(tape)
        return out, tape.play

    return record


def spoken(engine: Engine, lengths: list[int], again: bool = False) -> list:
    """Replies of those lengths after one prompt, and `again` under other weights from their middle on."""
    tokens = random.Random(4).choices(range(256), k=PAGE + 20)

    async def one(sample: int, length: int):
        return await engine.speak(View(tokens, (), (), (0, 0, sample, 0)), Sampling(max_tokens=length))

    async def update():
        for _ in range(12):
            await asyncio.sleep(0)
        engine.load({name: value * 1.05 for name, value in engine.network.state().items()}, 1)

    async def all_of_them():
        every = [one(sample, length) for sample, length in enumerate(lengths)]
        return (await asyncio.gather(*every, *([update()] if again else [])))[: len(lengths)]

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("again", [False, True], ids=["one version", "an update under way"])
def test_an_engine_that_plays_its_steps_says_what_it_says_without(tiny_model, renderer, taped, again):
    lengths = [30, 5, 17, 30, 11]
    found = []
    for graphs in (False, True):
        engine = Engine(Network.load(tiny_model), renderer=renderer, slots=5, context=400)
        if graphs:
            engine._graphs = Graphs(engine.network, engine.cache, record_on(taped))
        found.append(spoken(engine, lengths, again))
    for one, other in zip(*found, strict=True):
        assert one.tokens == other.tokens
        assert one.versions == other.versions and (1 in one.versions) == (again and len(one.tokens) > 11)
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), rtol=0, atol=2e-5)
    assert 2 <= len(taped) <= 6  # one for each power of two up to five speakers and all their guesses, in some forty steps


def test_a_step_that_waits_for_the_device_cannot_be_recorded(net):
    with pytest.raises(AssertionError, match="waits for the device"), Tape():
        torch.ones(3).sum().item()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here: no CUDA graph has been recorded")
def test_on_a_device_graphs_say_what_the_passes_say(tiny_model, renderer):
    found = []
    for graphs in (True, False):
        engine = Engine(Network.load(tiny_model, device="cuda"), renderer=renderer, slots=5, context=400)
        if not graphs:
            engine._graphs = None
        found.append(spoken(engine, [30, 5, 17]))
    for one, other in zip(*found, strict=True):
        assert one.tokens == other.tokens
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), rtol=0, atol=1e-3)
