"""The agent loops of two frameworks become harnesses by a change of base URL, and their traces train."""

from __future__ import annotations

import asyncio

import pytest
import torch

from tests.serve.house import adding, options, sealed, serving
from trivium.engine import Engine
from trivium.nn import Network, Packed
from trivium.policy import Reply, Scripted
from trivium.serve.service import Service
from trivium.trace import rows

ASKED = "What are 1 + 2 and 3 + 4?"


class Forced:
    """The tiny engine made to say what a script says: each token is given, and its logprob is the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self.renderer, self.version = engine, "tiny", engine.renderer, 7

    async def speak(self, view, sampling) -> Reply:
        tokens = self.renderer.reply(adding(view))
        logprobs = self.engine.logprobs([*view.tokens, *tokens])[-len(tokens) :].tolist()
        return Reply(tokens, logprobs, [self.version] * len(tokens), [1.0] * len(tokens))


@pytest.fixture(scope="module")
def service(tiny_model, renderer, tmp_path_factory):
    forced = Forced(Engine(tiny_model, slots=2, context=4096))
    return Service({"script": Scripted(adding, renderer), "tiny": forced}, options(tmp_path_factory.mktemp("frameworks")))


@pytest.fixture(scope="module")
def url(service):
    with serving(service) as url:
        yield url


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def ask_agents(url: str, dialect: str) -> str:
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    async def ask() -> str:
        set_tracing_disabled(True)
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            kind = OpenAIChatCompletionsModel if dialect == "chat" else OpenAIResponsesModel
            agent = Agent(name="adder", instructions="You add.", tools=[function_tool(add)], model=kind("tiny", client))
            return (await Runner.run(agent, ASKED)).final_output

    return asyncio.run(ask())


def ask_pydantic(url: str, dialect: str) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if dialect == "chat":
        model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    else:
        model = AnthropicModel("tiny", provider=AnthropicProvider(base_url=url, api_key="none"))
    return Agent(model, system_prompt="You add.", tools=[add]).run_sync(ASKED).output


@pytest.mark.parametrize(
    "ask, dialect",
    [(ask_agents, "chat"), (ask_agents, "responses"), (ask_pydantic, "chat"), (ask_pydantic, "messages")],
    ids=["openai-agents chat", "openai-agents responses", "pydantic-ai chat", "pydantic-ai messages"],
)
def test_an_agent_loop_is_one_segment_whose_logprobs_are_the_learners(service, url, tiny_model, ask, dialect):
    before = {episode.id for episode in sealed(service)}
    assert ask(url, dialect) == "They are 3 and 7."
    (episode,) = [episode for episode in sealed(service) if episode.id not in before]
    assert episode.ops == [] and len(episode.agent.segments) == 1 and episode.agent.answer == "They are 3 and 7."
    assert [(call.name, call.arguments, call.pieces[0].text) for call in episode.agent.calls] == [
        ("add", {"a": 1, "b": 2}, "3"),
        ("add", {"a": 3, "b": 4}, "7"),
    ]
    (row,) = rows(episode, ["tiny"])
    learned = logprobs(Network.load(tiny_model), row.tokens.tolist())
    served = torch.tensor(row.logprobs)[1:][torch.tensor(row.mask[1:])]
    assert row.trained > 50 and (learned[torch.tensor(row.mask[1:])] - served).abs().max() < 1e-4
    assert set(row.versions[row.mask].tolist()) == {7}


@torch.inference_mode()
def logprobs(network: Network, tokens: list[int]) -> torch.Tensor:
    """As the learner computes them: float32 [len - 1]."""
    run, view = torch.tensor(tokens), Packed([len(tokens)])
    return network.logprobs(network.hidden(run, view.positions, view)[:-1], run[1:])[0]
