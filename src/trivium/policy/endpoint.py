"""Any OpenAI-compatible endpoint as a policy. It speaks text: the trace marks its tokens as sampled without logprobs."""

from __future__ import annotations

import asyncio
import json
import math
import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trivium.errors import TRANSIENT, InputError, PolicyError, Unsupported
from trivium.policy.base import Reply, View
from trivium.policy.message import Message
from trivium.policy.render import Renderer
from trivium.trace import Sampling

WAIT = 1.0
"""Seconds before the second try; each further one waits twice as long."""


class Tokens(NamedTuple):
    """Tokens of one request, or of many: those that were sent, and those that came back."""

    prompt: int
    reply: int


@dataclass(frozen=True, slots=True)
class Price:
    """What a server takes for a million tokens, of prompts and of replies, in the currency of its bills."""

    prompt: float = 0.0
    reply: float = 0.0

    def of(self, tokens: Tokens) -> float:
        return (self.prompt * tokens.prompt + self.reply * tokens.reply) / 1e6


@dataclass(slots=True)
class Endpoint:
    """A model behind `base_url`, which may use `max_spend` tokens (prompts and completions) and cost `max_cost` at `price`.
    `spent` are the tokens that the server counts, or our renderer where it does not say, and `replied` those of them that came
    back; a try without an answer is taken to have cost what it might. A request begins when its view and the longest reply can
    be paid for beside those under way, by our count, and waits for these while they cannot. `exhausted` says that one could
    not at all.

    Passing failures are tried again up to `retries` times, waiting WAIT, 2 WAIT, 4 WAIT, ... with jitter.
    """

    base_url: str
    model: str
    renderer: Renderer
    api_key: str = field(default="none", repr=False)
    max_spend: int = 1_000_000
    price: Price = Price()
    max_cost: float = math.inf
    retries: int = 4
    timeout: float = 120.0
    name: str = "endpoint"
    version: int = 0
    spent: int = 0
    replied: int = 0
    exhausted: bool = False
    _under_way: list[Tokens] = field(default_factory=list, repr=False)
    _client: tuple[Any, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.retries < 0 or not self.timeout > 0:
            raise InputError(f"retries are 0 or more, and timeout above 0: not {self.retries}, {self.timeout}")
        if self.max_cost < math.inf and self.price == Price():
            raise InputError(f"max_cost {self.max_cost} caps nothing without a price: give price=Price(prompt, reply)")

    @property
    def cost(self) -> float:
        """What was spent, at its price."""
        return self.price.of(Tokens(self.spent - self.replied, self.replied))

    def affords(self, episodes: int, most: int) -> int:
        """How many further episodes to begin at once: as the caps will do for, by what `episodes` so far have cost, and at most
        `most`. Else many would run out of them together, none at its end. The first one goes alone."""
        left = (self.max_spend - self.spent) * episodes // max(1, self.spent)
        if self.cost:
            left = min(left, (self.max_cost - self.cost) * episodes // self.cost)
        return int(max(1, min(most, left)))

    async def speak(self, view: View, sampling: Sampling) -> Reply:
        """Raises PolicyError when a cap is reached, the server stays dead, or it refuses the request; Unsupported for
        top-k, which this API does not have; InputError where the openai package is missing, or a proxy cannot be used."""
        if sampling.top_k:
            raise Unsupported(f"{self.name}: the OpenAI API has no top_k; leave it 0")
        client = self._open()
        most = Tokens(len(view.tokens), sampling.max_tokens)
        while cap := self._beyond(most):
            if not self._under_way:
                self.exhausted = True
                raise PolicyError(f"{self.name}: {cap}")
            await asyncio.sleep(WAIT / 20)
        self._under_way.append(most)
        try:
            return await self._answer(client, view, sampling, most)
        finally:
            self._under_way.remove(most)

    def _beyond(self, *more: Tokens) -> str:
        """Which cap would be passed by what is under way and by `more`, all of it at its longest; "" for none."""
        asked = [*self._under_way, *more]
        if self.spent + sum(map(sum, asked)) > self.max_spend:
            return f"the spending cap of {self.max_spend:,} tokens is reached"
        if self.cost + sum(map(self.price.of, asked)) > self.max_cost:
            return f"the spending cap of {self.max_cost:g} is reached, and {self.cost:.4g} spent"
        return ""

    def _pay(self, tokens: Tokens) -> None:
        self.spent += sum(tokens)
        self.replied += tokens.reply

    async def _answer(self, client: Any, view: View, sampling: Sampling, most: Tokens) -> Reply:
        for attempt in range(self.retries + 1):
            try:
                return self._reply(await self._ask(client, view, sampling), view)
            except asyncio.CancelledError:  # the server goes on, and bills
                self._pay(most)
                raise
            except Exception as error:  # the SDK's tree of errors moved between its versions; we read only `status_code`
                if _unanswered(error):
                    self._pay(most)
                if not _passing(error) or attempt == self.retries:
                    raise PolicyError(f"{self.name} at {self.base_url}: {error}") from error
                if cap := self._beyond():
                    self.exhausted = True
                    raise PolicyError(f"{self.name}: {cap}: {error}") from error
                await asyncio.sleep(WAIT * 2**attempt * (1 + random.random() / 4))
        raise AssertionError("unreachable")

    async def _ask(self, client: Any, view: View, sampling: Sampling) -> Any:
        arguments: dict[str, Any] = {"model": self.model, "messages": [_wire(m) for m in view.messages]}
        if view.tools:
            arguments["tools"] = list(view.tools)
        return await client.chat.completions.create(
            **arguments,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            timeout=self.timeout,
        )

    def _open(self) -> Any:
        """One client for each event loop: its connections live there."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            try:
                from openai import AsyncOpenAI, DefaultAsyncHttpxClient
            except ImportError as error:
                raise InputError("an Endpoint needs the OpenAI client: pip install openai") from error
            try:
                http = DefaultAsyncHttpxClient()  # its own would close itself in whatever loop then runs, and complain
            except (ValueError, ImportError) as error:
                advice = "unset ALL_PROXY, HTTPS_PROXY, HTTP_PROXY or name another"
                raise InputError(f"the environment names a proxy that cannot be used ({error}): {advice}") from error
            try:
                client = AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, max_retries=0, http_client=http)
            except Exception as error:  # no key, no address: no reply
                raise PolicyError(f"{self.name} at {self.base_url}: {error}") from error
            self._client = loop, client
        return self._client[1]

    def _reply(self, completion: Any, view: View) -> Reply:
        if told := _told(completion.usage):
            self._pay(told)
        choice = completion.choices[0]
        message: Message = {"role": "assistant", "content": choice.message.content or ""}
        for key in ("reasoning_content", "reasoning"):  # of servers that want their thoughts back, each its own name
            if thoughts := getattr(choice.message, key, None):
                message[key] = thoughts
        if choice.message.tool_calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
                for c in choice.message.tool_calls
            ]
        if not told:
            self._pay(Tokens(len(view.tokens), len(self.renderer.encode(json.dumps(message, ensure_ascii=False)))))
        return Reply(message=message, complete=choice.finish_reason in ("stop", "tool_calls", None))


def _told(usage: Any) -> Tokens | None:
    """What the server says that an answer took; None where it says nothing."""
    if total := getattr(usage, "total_tokens", None) or 0:
        reply = getattr(usage, "completion_tokens", None) or 0
        return Tokens(total - reply, reply)
    return None


def _passing(error: Exception) -> bool:
    """Worth another try: the server was busy or gone for a moment, not offended by what we asked."""
    status = getattr(error, "status_code", None)
    return status in TRANSIENT or type(error).__name__ in {"APIConnectionError", "APITimeoutError"}


def _unanswered(error: Exception) -> bool:
    """Whether a server may be at work on it and bill: nothing came in time, or a connection that stood broke."""
    name = type(error).__name__
    return name == "APITimeoutError" or (name == "APIConnectionError" and type(error.__cause__).__name__ != "ConnectError")


def _wire(message: Message) -> Message:
    """The API wants arguments as a JSON string."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**c, "function": {**c["function"], "arguments": _dumps(c["function"]["arguments"])}} for c in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _dumps(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
