"""The three dialects with the official clients, unchanged: whole and streamed, with tools, parallel calls and errors."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest

from tests.serve.house import ADD, adding, options, serving
from trivium.engine import Engine
from trivium.policy import Scripted
from trivium.serve.service import Service

ASKED = "What are 1 + 2 and 3 + 4?"
SCHEMA = ADD["function"]["parameters"]
CLAUDE_TOOL = {"name": "add", "description": "Add two numbers.", "input_schema": SCHEMA}
FLAT = {"type": "function", "name": "add", "description": "Add two numbers.", "parameters": SCHEMA, "strict": False}


@pytest.fixture(scope="module")
def service(tiny_model, renderer, tmp_path_factory):
    engine = Engine(tiny_model, slots=8, context=2048, name="tiny")
    return Service({"script": Scripted(adding, renderer), "tiny": engine}, options(tmp_path_factory.mktemp("dialects")))


@pytest.fixture(scope="module")
def url(service):
    with serving(service) as url:
        yield url


@pytest.fixture
def gpt(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def sums(arguments: list[dict]) -> list[str]:
    return [str(each["a"] + each["b"]) for each in arguments]


def test_chat_completions_walk_through_parallel_calls(gpt):
    messages = [{"role": "user", "content": ASKED}]
    first = gpt.chat.completions.create(model="script", messages=messages, tools=[ADD]).choices[0]
    assert first.finish_reason == "tool_calls" and first.message.content == "Let me add."
    calls = first.message.tool_calls
    results = sums([json.loads(call.function.arguments) for call in calls])
    messages += [first.message.model_dump(exclude_none=True)]
    messages += [{"role": "tool", "tool_call_id": c.id, "content": r} for c, r in zip(calls, results, strict=True)]
    last = gpt.chat.completions.create(model="script", messages=messages, tools=[ADD])
    assert last.choices[0].message.content == "They are 3 and 7." and last.usage.prompt_tokens_details.cached_tokens > 0


def test_streamed_calls_are_whole(gpt):
    with gpt.chat.completions.stream(model="script", messages=[{"role": "user", "content": ASKED}], tools=[ADD]) as stream:
        events = list(stream)
    assert any(event.type == "tool_calls.function.arguments.done" for event in events)
    with gpt.chat.completions.stream(model="script", messages=[{"role": "user", "content": ASKED}], tools=[ADD]) as stream:
        message = stream.get_final_completion().choices[0].message
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_responses_walk_through_parallel_calls(gpt):
    first = gpt.responses.create(model="script", input=ASKED, tools=[FLAT])
    calls = [item for item in first.output if item.type == "function_call"]
    results = sums([json.loads(call.arguments) for call in calls])
    outputs = [{"type": "function_call_output", "call_id": c.call_id, "output": r} for c, r in zip(calls, results, strict=True)]
    by_id = gpt.responses.create(model="script", previous_response_id=first.id, input=outputs, tools=[FLAT])
    whole = [{"role": "user", "content": ASKED}, *(item.model_dump() for item in first.output), *outputs]
    by_items = gpt.responses.create(model="script", input=whole, tools=[FLAT])
    assert by_id.output_text == by_items.output_text == "They are 3 and 7."
    assert by_id.usage.input_tokens == by_items.usage.input_tokens


def test_responses_stream_what_they_say_at_the_end(gpt):
    with gpt.responses.stream(model="script", input=ASKED, tools=[FLAT]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == final.output_text == "Let me add."
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]
    assert [event.sequence_number for event in events if hasattr(event, "sequence_number")] == list(range(len(events)))


def test_messages_walk_through_parallel_calls(claude):
    arguments = {"model": "script", "max_tokens": 100, "tools": [CLAUDE_TOOL], "system": "You add."}
    first = claude.messages.create(messages=[{"role": "user", "content": ASKED}], **arguments)
    assert first.stop_reason == "tool_use" and first.content[0].text == "Let me add."
    calls = first.content[1:]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": result}
        for call, result in zip(calls, sums([call.input for call in calls]), strict=True)
    ]
    turns = [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]
    last = claude.messages.create(messages=turns, **arguments)
    assert last.content[0].text == "They are 3 and 7." and last.stop_reason == "end_turn"
    assert last.usage.cache_read_input_tokens > 0


def test_messages_stream_what_they_say_at_the_end(claude):
    arguments = {"model": "script", "max_tokens": 100, "tools": [CLAUDE_TOOL]}
    with claude.messages.stream(messages=[{"role": "user", "content": ASKED}], **arguments) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == "Let me add."
    assert [block.input for block in final.content[1:]] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_tokens_are_counted_before_they_are_sent(claude):
    messages = [{"role": "user", "content": ASKED}]
    counted = claude.messages.count_tokens(model="tiny", messages=messages).input_tokens
    assert counted == claude.messages.create(model="tiny", messages=messages, max_tokens=1).usage.input_tokens


def test_a_model_speaks_in_all_dialects_alike(gpt, claude):
    turns = [{"role": "user", "content": "hi"}]
    chat = gpt.chat.completions.create(model="script", messages=turns)
    answer = gpt.responses.create(model="script", input="hi")
    message = claude.messages.create(model="script", messages=turns, max_tokens=12)
    assert chat.choices[0].message.content == answer.output_text == message.content[0].text == "Hello."
    assert (chat.choices[0].finish_reason, answer.status, message.stop_reason) == ("stop", "completed", "end_turn")


def test_a_reply_that_was_cut_off_says_so_in_all_dialects(gpt, claude):
    turns = [{"role": "user", "content": "hi"}]
    chat = gpt.chat.completions.create(model="tiny", messages=turns, max_tokens=1, temperature=0)
    answer = gpt.responses.create(model="tiny", input="hi", max_output_tokens=1, temperature=0)
    message = claude.messages.create(model="tiny", messages=turns, max_tokens=1, extra_body={"temperature": 0})
    assert (chat.choices[0].finish_reason, answer.status, message.stop_reason) == ("length", "incomplete", "max_tokens")


def test_models_are_listed_for_both(gpt, claude):
    assert [each.id for each in gpt.models.list()] == [each.id for each in claude.models.list()] == ["script", "tiny"]
    assert gpt.models.retrieve("tiny").id == claude.models.retrieve("tiny").id == "tiny"


def test_errors_are_those_of_the_apis(gpt, claude):
    hello = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError, match="no model 'gone'"):
        gpt.chat.completions.create(model="gone", messages=hello)
    with pytest.raises(anthropic.NotFoundError, match="no model 'gone'"):
        claude.messages.create(model="gone", messages=hello, max_tokens=1)
    with pytest.raises(openai.BadRequestError, match="do not fit the context of 2048"):
        gpt.chat.completions.create(model="tiny", messages=hello, max_tokens=5000)
    with pytest.raises(openai.NotFoundError, match="no response"):
        gpt.responses.create(model="tiny", input="hi", previous_response_id="resp_forged")


@pytest.mark.parametrize(
    "option",
    [{"n": 2}, {"logit_bias": {"5": 1}}, {"response_format": {"type": "json_object"}}, {"tool_choice": "required"},
     {"frequency_penalty": 0.5}, {"extra_body": {"best_of": 3}}, {"extra_body": {"temperature": "warm"}}],
    ids=str,
)  # fmt: skip
def test_an_option_that_cannot_be_honoured_is_refused_by_name(gpt, option):
    name = next(iter(option.get("extra_body", option)))
    with pytest.raises(openai.BadRequestError, match=name):
        gpt.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}], **option)


def test_a_stop_text_ends_the_reply_before_it(gpt):
    arguments = {"model": "script", "messages": [{"role": "user", "content": "hi"}]}
    plain = gpt.chat.completions.create(**arguments).choices[0].message.content
    cut = gpt.chat.completions.create(**arguments, stop=plain[3:5]).choices[0]
    with gpt.chat.completions.create(**arguments, stop=[plain[3:5]], stream=True) as stream:
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert cut.message.content == streamed == plain[:3] and cut.finish_reason == "stop"
