"""The engine: admits requests, computes what their slots lack, draws a token for each, and lets the finished ones go.

Between two steps it yields to the event loop, so requests join and leave while others go on. Everything it does is
decided by the order of requests and not by time: with tools that answer at once, equal runs batch equally (law 11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch

from trivium.engine.cache import MARGIN, Cache
from trivium.engine.request import Request
from trivium.engine.sample import sample
from trivium.engine.view import Slots
from trivium.errors import InputError, PolicyError, Unsupported
from trivium.nn import Network
from trivium.policy import Renderer, Reply, View
from trivium.trace import Sampling

_TOKENS = 4096  # of one forward pass: what fits the caches of a small machine
_GATHER = 4  # requests worth a prefill of their own while others decode


class Engine:
    """A Policy with weights of its own.

    `model` is a model folder (or name), or a Network to speak with; `slots` how many requests run at once, `context` how
    long one may grow. `version` numbers the weights; `load` replaces them.
    """

    def __init__(
        self,
        model: str | Path | Network,
        *,
        renderer: Renderer | None = None,
        name: str = "agent",
        slots: int = 64,
        context: int = 1024,
        version: int = 0,
    ) -> None:
        self.network = model if isinstance(model, Network) else Network.load(model)
        if self.network.head.weight.device.type != "cpu":
            raise Unsupported(f"this engine has no attention kernel for {self.network.head.weight.device}; it runs on the CPU")
        self.renderer = renderer or Renderer.load(model)
        self.name, self.version = name, version
        limit = getattr(self.network.config, "max_position_embeddings", context)
        if context > limit:
            raise InputError(f"the context of {context} tokens is longer than this model's {limit}")
        self.cache = Cache(self.network.config, slots, context, self.network.head.weight.dtype)
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._driver: asyncio.Task | None = None

    async def speak(self, view: View, sampling: Sampling) -> Reply:
        """One reply. Raises PolicyError when the view and its reply do not fit the engine's context."""
        if len(view.tokens) + sampling.max_tokens > self.cache.context:
            raise PolicyError(
                f"{len(view.tokens)} tokens and a reply of {sampling.max_tokens} do not fit the engine's context of "
                f"{self.cache.context}"
            )
        loop = asyncio.get_running_loop()
        request = Request.make(view.tokens, sampling, view.stream, loop.create_future())
        self._waiting.append(request)
        if self._driver is None or self._driver.done():
            self._driver = loop.create_task(self._drive())
        await request.done
        return Reply(request.tokens[request.prompt :], request.logprobs, request.versions, request.kept)

    def load(self, state: dict[str, torch.Tensor], version: int) -> None:
        """Take over new weights between two steps. Requests under way go on under them, their past computed anew."""
        self.network.load_state(state)
        self.version = version
        self.cache.clear()

    def digest(self) -> str:
        """Of the tensors that this engine really holds (law 10)."""
        return self.network.digest()

    @torch.inference_mode()
    def score(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logprobs float32 [len - 1] of each token of a probe given those before it, as this engine computes them."""
        run = torch.tensor(list(tokens))
        slots, starts = torch.tensor([0]), torch.tensor([0])
        scratch = Cache(self.network.config, 1, len(tokens), self.network.head.weight.dtype)
        view = Slots(scratch, slots, starts, len(tokens))
        hidden = self.network.hidden(run[None], view.positions, view)[0]
        return self.network.logprobs(hidden[:-1], run[1:])[0]

    async def _drive(self) -> None:
        try:
            while self._waiting or self._running:
                self._step()
                await asyncio.sleep(0)
        except Exception as error:
            for request in [*self._waiting, *self._running]:
                if not request.done.done():
                    request.done.set_exception(PolicyError(f"the engine broke: {type(error).__name__}: {error}"))
            self._waiting, self._running = [], []
            self.cache.leased[:] = False
            self.cache.clear()
            raise

    @torch.inference_mode()
    def _step(self) -> None:
        """Admit who waits, if enough do to be worth a pass; then one token for everybody who runs."""
        self._drop_cancelled()
        while self._waiting and (len(self._waiting) >= _GATHER or len(self._running) <= len(self._waiting)):
            if not self._admit():
                break
        if self._running:
            self._advance(self._running)

    def _admit(self) -> bool:
        """One wave of waiting requests, prefilled. Who shares more with another of the wave than with any slot waits for
        the next wave and finds that prefix computed: a group's prompt is computed once."""
        wave: list[Request] = []
        for request in list(self._waiting):
            held = int(self.cache.shared(request.tokens).max())
            if any(_common(request.tokens, other.tokens) > max(held, 8) for other in wave):
                continue
            slot = self.cache.lease(request.tokens)
            if slot is None:
                break
            request.slot = slot
            wave.append(request)
            self._waiting.remove(request)
        if wave:
            self._advance(wave)
        self._running += [request for request in wave if not request.done.done()]
        self._running.sort(key=lambda request: request.slot)
        return bool(wave)

    def _advance(self, requests: list[Request]) -> None:
        """Compute all that these requests' slots lack, and draw one token for each."""
        short = sorted(requests, key=lambda r: (len(r.tokens) - self.cache.lengths[r.slot], r.slot))
        while short:
            new = len(short[-1].tokens) - int(self.cache.lengths[short[-1].slot])
            batch, short = short[-max(1, _TOKENS // new) :], short[: -max(1, _TOKENS // new)]
            self._forward(sorted(batch, key=lambda request: request.slot), new)

    def _forward(self, batch: list[Request], new: int) -> None:
        """Rows of up to `new` tokens, in pieces short enough for the margin behind the slots."""
        while new > MARGIN:
            self._compute([r for r in batch if self._lacks(r) > MARGIN], MARGIN)
            new = max(self._lacks(request) for request in batch)
        hidden = self._compute(batch, new)
        logits = self.network.logits(hidden)
        draws = torch.tensor([request.draw for request in batch], dtype=torch.float64)
        drawn = sample(logits, [request.sampling for request in batch], draws)
        for request, token, logprob, kept in zip(batch, *(x.tolist() for x in drawn), strict=True):
            request.hear(token, logprob, kept, self.version)
            if request.ended(self.renderer.stop_tokens):
                self._finish(request)

    def _lacks(self, request: Request) -> int:
        return len(request.tokens) - int(self.cache.lengths[request.slot])

    def _compute(self, batch: list[Request], new: int) -> torch.Tensor:
        """Extend each slot by up to `new` of its request's tokens; the hidden state [B, d] of each one's last."""
        starts = [int(self.cache.lengths[request.slot]) for request in batch]
        parts = [r.tokens[start : start + new] for r, start in zip(batch, starts, strict=True)]
        padded = torch.tensor([part + [0] * (new - len(part)) for part in parts])
        view = Slots(self.cache, torch.tensor([r.slot for r in batch]), torch.tensor(starts), new)
        hidden = self.network.hidden(padded, view.positions, view)
        for request, part in zip(batch, parts, strict=True):
            self.cache.wrote(request.slot, part)
        return hidden[torch.arange(len(batch)), torch.tensor([len(part) - 1 for part in parts])]

    def _finish(self, request: Request) -> None:
        self.cache.release(request.slot)
        if request in self._running:
            self._running.remove(request)
        if not request.done.done():
            request.done.set_result(None)

    def _drop_cancelled(self) -> None:
        self._waiting = [request for request in self._waiting if not request.done.cancelled()]
        for request in [request for request in self._running if request.done.cancelled()]:
            self._finish(request)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return position
    return min(len(a), len(b))
