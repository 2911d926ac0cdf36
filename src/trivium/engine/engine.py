"""The engine admits requests, computes what they lack, draws a token for each that lacks nothing, and ends the finished ones.

A step is one forward pass, for requests that speak and requests that read their prompts together. Between two steps the engine
yields to the event loop, so requests join and leave while others go on. The order of requests decides everything, and time
nothing: with tools that answer at once, equal runs batch equally (law 11).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from trivium.engine.cache import LEAST_SHARED, Cache
from trivium.engine.drafts import Drafts
from trivium.engine.graphs import Graphs
from trivium.engine.request import Request
from trivium.engine.sample import sample
from trivium.engine.view import Contexts
from trivium.errors import InputError, LawError, PolicyError, Unsupported
from trivium.nn import Network
from trivium.policy import Renderer, Reply, View
from trivium.trace import Sampling

_TOKENS = 1024  # tokens of prompts that one forward pass reads: what fits the caches of a small machine
_ROWS = 256  # tokens whose logits over the vocabulary are in memory at once
_GUESSES = 7  # tokens of a reply that one pass checks beyond the one it computes
_LOOK = 0.001  # seconds between two looks whether an engine that somebody holds is free again
_BLOCK = 31 << 20  # bytes: nearly the largest block (32 MiB) from whose size glibc's malloc learns


class Engine:
    """A Policy with weights of its own.

    `model` is a model folder (or name), or a Network to speak with. `slots` says how many requests run at once, `context` how
    many tokens one may have, `memory` how many tokens of keys and values are kept (default: slots x context). `version`
    numbers the weights, and `load` replaces them, from any thread. A request without a free slot or memory waits for its
    turn. The engine speaks in one event loop at a time. Raises InputError for sizes that do not fit and a network without a
    tokenizer, Unsupported for a device other than a CPU and CUDA.
    """

    forgets = False
    """Whether nothing that was computed outlives the last request that runs: then what the engine says does not hang on what it
    said before, not in its last bits either. For one whose weights stay while a run, which may be stopped, goes on."""

    def __init__(
        self,
        model: str | Path | Network,
        *,
        renderer: Renderer | None = None,
        name: str = "agent",
        slots: int = 64,
        context: int = 1024,
        memory: int | None = None,
        version: int = 0,
    ) -> None:
        self.network = model if isinstance(model, Network) else Network.load(model)
        weight = self.network.head.weight
        if weight.device.type not in ("cpu", "cuda"):
            raise Unsupported(f"this engine has no attention kernel for {weight.device}; it runs on a CPU or a CUDA device")
        self.renderer = renderer or _renderer(model)
        self.name, self.version = name, version
        self.network.check_context(context)
        if slots < 1:
            raise InputError(f"an engine needs a slot to speak: slots is {slots}")
        if memory is not None and memory < context:
            raise InputError(f"a memory of {memory} tokens does not hold one context of {context}")
        self.slots = slots
        self.cache = Cache(self.network.config, slots, context, weight.dtype, memory, weight.device)
        self._graphs = Graphs(self.network, self.cache) if weight.device.type == "cuda" else None
        torch.empty(_BLOCK, dtype=torch.uint8)  # freed at once: from then on malloc keeps what a pass frees for the next one
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._driver: asyncio.Task | None = None
        self._lock = threading.RLock()  # held during a step: `load` and `held` in another thread wait for its end
        self._loads = self.network.loads
        self.drafts = Drafts()

    async def speak(self, view: View, sampling: Sampling) -> Reply:
        """One reply. Raises PolicyError when the view and its reply do not fit the engine's context, when the view holds no
        tokens of the vocabulary, and when the engine broke; InputError while it speaks in another event loop."""
        request = self._begin(view, sampling)
        await request.reply
        return _said(request, 0)

    async def stream(self, view: View, sampling: Sampling) -> AsyncGenerator[Reply]:
        """The same reply in parts, as it is drawn. Who stops listening stops it: no more is drawn."""
        request, told = self._begin(view, sampling), 0
        request.reply.add_done_callback(lambda _: request.news.set())
        try:
            while not request.reply.done() or request.length > told:
                await request.news.wait()
                request.news.clear()
                if request.length > told:
                    part, told = _said(request, told), request.length
                    yield part
            await request.reply  # raises what broke
        finally:
            request.reply.cancel()

    def _begin(self, view: View, sampling: Sampling) -> Request:
        vocabulary = self.network.config.vocab_size
        if not len(view.tokens) or min(view.tokens) < 0 or max(view.tokens) >= vocabulary:
            raise PolicyError(f"a view is tokens from 0 to {vocabulary - 1}, and at least one")
        if len(view.tokens) + sampling.max_tokens > self.cache.context:
            raise PolicyError(
                f"{len(view.tokens)} tokens and a reply of {sampling.max_tokens} do not fit the engine's context of "
                f"{self.cache.context}"
            )
        loop = asyncio.get_running_loop()
        self._leave(loop)
        request = Request.make(view.tokens, sampling, view.stream, loop.create_future())
        self._waiting.append(request)
        if self._driver is None or self._driver.done():
            self._driver = loop.create_task(self._drive())
        return request

    @property
    def context(self) -> int:
        """How many tokens a view and its reply may take."""
        return self.cache.context

    def held(self) -> AbstractContextManager[Any]:
        """Nothing is drawn within it: weights that are loaded there speak once they are checked (law 10). Requests wait, and
        the event loop goes on, where another thread holds the engine."""
        return self._lock

    def load(self, state: dict[str, torch.Tensor], version: int) -> None:
        """Take over new weights between two steps. Running requests go on under them, and their past is computed anew."""
        with self._lock:
            self.network.load_state(state)
            self.version, self._loads = version, self.network.loads
            self.clear()

    def clear(self) -> None:
        """Forget all keys and values: what comes next begins as in a new engine. Running requests queue again, first."""
        with self._lock:
            for request in self._running:
                request.grant = None
            self._waiting[:0], self._running = self._running, []
            self.cache.clear()
            self.drafts.clear()

    def digest(self) -> str:
        """The digest of the tensors that this engine really holds (law 10)."""
        return self.network.digest()

    @torch.inference_mode()
    def logprobs(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logprobs float32 [len - 1] of each token of a probe given those before it, as this engine computes them."""
        run = torch.tensor(list(tokens), device=self.cache.device)
        scratch = Cache(self.network.config, 1, len(tokens), self.cache.dtype, device=self.cache.device)
        lease = scratch.lease(list(tokens), 0)
        assert lease is not None, "an empty cache of that size has room"
        view = Contexts(scratch, [lease], [list(tokens)])
        hidden = self.network.hidden(run, view.positions, view)
        return self.network.logprobs(hidden[:-1], run[1:])[0]

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave another event loop, and the requests that it had, if it is closed. InputError if it goes on."""
        driver = self._driver
        if driver is None or driver.done() or driver.get_loop() is loop:
            return
        if not driver.get_loop().is_closed():
            raise InputError("this engine speaks in another event loop, which goes on: one engine, one loop")
        self._driver, self._waiting, self._running = None, [], []
        self.clear()

    async def _drive(self) -> None:
        while self._waiting or self._running:
            try:
                stepped = self._stepped()
            except BaseException as error:  # Ctrl-C too: a step that ends half-way leaves pages that hold nothing
                self._break(error)
                raise
            try:
                await asyncio.sleep(0 if stepped else _LOOK)
            except asyncio.CancelledError as error:  # by somebody who ends all tasks of a loop: those who wait end as well
                for request in [*self._waiting, *self._running]:
                    request.reply.cancel()
                self._break(error)
                raise
        if self.forgets:
            self.clear()

    def _stepped(self) -> bool:
        """Whether a step was computed: none is where another thread holds the engine, and nobody waits for it here."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._step()
        finally:
            self._lock.release()
        return True

    def _break(self, error: BaseException) -> None:
        """Fail all requests, so that nobody waits for ever. What comes next begins as in a new engine."""
        for request in [*self._waiting, *self._running]:
            if not request.reply.done():
                request.reply.set_exception(PolicyError(f"the engine broke: {type(error).__name__}: {error}"))
        self._waiting, self._running = [], []
        self.clear()

    @torch.inference_mode()
    def _step(self) -> None:
        """Admit requests; compute one pass of what they lack and of guesses; draw for all that then lack nothing."""
        if self.network.loads != self._loads:
            raise LawError("the network was loaded by somebody else than its engine, who knows no version of it: load it twice")
        self._drop_cancelled()
        self._admit()
        speakers = [request for request in self._running if request.lacks == 1]
        readers, parts = self._readers()
        if speakers or readers:
            runs = [[request.tokens[-1], *self._guesses(request)] for request in speakers]
            self._forward([*speakers, *readers], [*runs, *parts], len(speakers))

    def _guesses(self, request: Request) -> list[int]:
        return self.drafts.guess(request.tokens, min(_GUESSES, request.rest - 1, request.lease.room - 1))

    def _admit(self) -> None:
        """Admit requests that wait, in their order, as long as slots and pages last.

        One that shares more with a request that is still reading than with the cache waits for it: so a group's prompt is
        computed once.
        """
        reading = [request for request in self._running if request.lacks > 1]
        for request in list(self._waiting):
            if self.cache.leased.all():
                return
            enough = self.cache.prefix(request.tokens) + LEAST_SHARED if reading else 0
            if any(request.follows(other, enough) for other in reading):
                continue
            request.grant = self.cache.lease(request.tokens, request.rest)
            if request.grant is None:
                return
            self._waiting.remove(request)
            self._running.append(request)
            if request.lacks > 1:
                reading.append(request)

    def _readers(self) -> tuple[list[Request], list[list[int]]]:
        """Requests that lack more than a token, first come first served, and the part of each that this pass computes.

        The last one too gets as much as fits a whole pass: a part that is cut in two reads its past twice.
        """
        room, readers, parts = _TOKENS, [], []
        for request in self._running:
            if request.lacks > 1 and room > 0:
                start = request.lease.length
                readers.append(request)
                parts.append(request.tokens[start : start + _TOKENS])
                room -= len(parts[-1])
        return readers, parts

    def _forward(self, batch: list[Request], parts: list[list[int]], speakers: int) -> None:
        drawing = [len(part) >= request.lacks for request, part in zip(batch, parts, strict=True)]
        view = Contexts(self.cache, [request.lease for request in batch], parts, speakers, drawing)
        run = torch.tensor([token for part in parts for token in part], device=self.cache.device)
        if self._graphs and speakers == len(batch):
            hidden = self._graphs.hidden(run, view)
        else:
            hidden = self.network.hidden(run, view.positions, view, view.at)
        guesses = [part[1:] if number < speakers else [] for number, part in enumerate(parts)]
        turns = [(request, guess) for request, guess, draws in zip(batch, guesses, drawing, strict=True) if draws]
        if turns:
            self._draw(turns, hidden)

    def _draw(self, turns: list[tuple[Request, list[int]]], hidden: torch.Tensor) -> None:
        """Draw a token for each request and another for each guess that came true; hidden [requests and guesses, width]."""
        numbers = [draw for request, guesses in turns for draw in request.draws[request.length :][: len(guesses) + 1]]
        draws = torch.tensor(numbers, dtype=torch.float64, device=self.cache.device)
        samplings = [request.sampling for request, guesses in turns for _ in range(len(guesses) + 1)]
        parts = [slice(at, at + _ROWS) for at in range(0, len(samplings), _ROWS)]
        samples = [sample(self.network.logits(hidden[part]), samplings[part], draws[part]) for part in parts]
        rows = zip(*(torch.cat(x).tolist() for x in zip(*samples, strict=True)), strict=True)
        for request, guesses in turns:
            wrong = len(guesses)
            for guess, (token, logprob, kept) in zip([*guesses, None], list(islice(rows, wrong + 1)), strict=True):
                request.append(token, logprob, kept, self.version)
                self.drafts.record(request.tokens)
                if token != guess or request.ended(self.renderer.stop_tokens):
                    break
                wrong -= 1
                self.drafts.hits += 1
            self.cache.retract(request.lease, wrong)
            if request.ended(self.renderer.stop_tokens):
                self._finish(request)

    def _finish(self, request: Request) -> None:
        self.cache.release(request.lease)
        self._running.remove(request)
        if not request.reply.done():
            request.reply.set_result(None)

    def _drop_cancelled(self) -> None:
        self._waiting = [request for request in self._waiting if not request.reply.cancelled()]
        for request in [request for request in self._running if request.reply.cancelled()]:
            self._finish(request)


def _said(request: Request, start: int) -> Reply:
    """What a request drew from its token number `start` on."""
    tokens = request.tokens[request.prompt + start :]
    return Reply(tokens, request.logprobs[start:], request.versions[start:], request.kept[start:])


def _renderer(model: str | Path | Network) -> Renderer:
    """The renderer of a model's own tokenizer."""
    folder = model.folder if isinstance(model, Network) else model
    if folder is None:
        raise InputError("this network was made and not loaded, and has no tokenizer: give Engine a renderer")
    return Renderer.load(folder)
