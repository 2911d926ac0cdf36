"""Decoding steps as CUDA graphs. In a step of speakers alone a pass is hundreds of small kernels, and launching them takes
longer than running them. A graph launches them as one.

A graph reads from fixed addresses. Before each step its tokens, their positions, the places of their keys and values and the
tables of the block mask are copied there. There is a graph for each power of two of tokens, recorded when it is first needed.
A step with fewer tokens repeats its last one. Weights and pages are changed in place, so a graph outlives a `load`. Tests
record and play the same passes with a tape; on an H200 graphs gave what passes give (tests/engine/test_graphs.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from trivium.engine.cache import Cache
from trivium.engine.flex import Speakers, Tables
from trivium.engine.view import Contexts, write
from trivium.nn import Network

Play = Callable[[], None]


def cuda_graph(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Play]:
    """`run` as a CUDA graph: its result, at the address where each replay leaves it, and the replay (pytorch.org, CUDA
    semantics, section "CUDA Graphs"). `run` runs twice before, on the stream that records it, so that kernels are compiled."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = run()
    return out, graph.replay


class Graphs:
    """`Network.hidden` for steps in which every request speaks, of one network and one cache."""

    def __init__(self, network: Network, cache: Cache, record: Callable[..., tuple[torch.Tensor, Play]] = cuda_graph) -> None:
        self._network, self._cache, self._record = network, cache, record
        self._steps: dict[int, Step] = {}

    def hidden(self, tokens: torch.Tensor, view: Contexts) -> torch.Tensor:
        """tokens int64 [N], each a speaker's or a guess -> hidden states [N, d]."""
        width = 1 << (len(tokens) - 1).bit_length()
        if width not in self._steps:
            self._steps[width] = Step(self._network, self._cache, _repeated(width, tokens, view), self._record)
        return self._steps[width](_repeated(width, tokens, view))[: len(tokens)].clone()  # the next step writes there


class Step:
    """A graph of one pass, and its view of what stands at its addresses: tokens, positions, pages and places int64 [W], and
    the tables of W queries."""

    def __init__(
        self, network: Network, cache: Cache, inputs: list[torch.Tensor], record: Callable[..., tuple[torch.Tensor, Play]]
    ) -> None:
        self._inputs, self._cache = [each.clone() for each in inputs], cache
        tokens, positions, self._pages, self._places, *tables = self._inputs
        self._speakers = Speakers.over(Tables(*tables))
        self._out, self._play = record(lambda: network.hidden(tokens, positions, self))

    def __call__(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        for address, new in zip(self._inputs, inputs, strict=True):
            address.copy_(new)
        self._play()
        return self._out

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
        keys, values = write(self._cache, layer, self._pages, self._places, k, v)
        return self._speakers.attend(q[0].transpose(0, 1), keys, values, scaling)[None]


def _repeated(width: int, tokens: torch.Tensor, view: Contexts) -> list[torch.Tensor]:
    """What a step reads, its last token repeated up to `width`: writing the same to the same place does no harm."""
    assert view.speakers is not None, "a step of speakers alone"
    inputs = [tokens, view.positions, view.pages, view.places, *view.speakers.tables]
    at = torch.arange(width, device=tokens.device).clamp(max=len(tokens) - 1)
    return [each.index_select(0, at) for each in inputs]
