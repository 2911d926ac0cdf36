"""Chat completions with the official client: what it is told, and what is in the store by then."""

from __future__ import annotations

import openai
import pytest

from tests.serve.house import options, serving
from trivium.engine import Engine
from trivium.serve.service import Service


@pytest.fixture(scope="module")
def service(tiny_model, tmp_path_factory):
    return Service({"tiny": Engine(tiny_model, slots=8, context=2048)}, options(tmp_path_factory.mktemp("chat")))


@pytest.fixture(scope="module")
def url(service):
    with serving(service) as url:
        yield url


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


HELLO = [{"role": "user", "content": "hi"}]


def test_a_reply_is_in_the_store_by_its_exact_tokens_before_it_is_told(client, service):
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=20, logprobs=True)
    (exchange,) = [each for each in _all(service) if answer.id.endswith(each.id)]
    assert answer.choices[0].message.content == exchange.message["content"]
    assert exchange.fresh == service.models["tiny"].renderer.opening(HELLO)
    assert len(exchange.tokens) == answer.usage.completion_tokens > 0
    assert [each.logprob for each in answer.choices[0].logprobs.content] == exchange.logprobs


def test_a_stream_says_what_the_whole_says(client):
    arguments = {"model": "tiny", "messages": HELLO, "max_tokens": 40, "seed": 3}
    answer = client.chat.completions.create(**arguments)
    whole = answer.choices[0]
    with client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.message.content and len(chunks) > 3, chunks
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.finish_reason
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


def _all(service):
    return [
        each
        for account, session in service.exchanges.over(float("inf"))
        for each in service.exchanges.session(account, session)
    ]
