"""What is a tool, what its result may be, how long it may take, and whose doing it was that a call failed."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.laws.walks import TASK, search, search_corpus
from trivium.errors import InputError, PolicyError
from trivium.harness import Harness, Limits, Passage, Subagent, Tool, ToolError, Window, assign_task, prune_chunks, tool
from trivium.policy import Scripted
from trivium.policy.scripted import call, say


class Fetch:
    """A tool as a server elsewhere describes it: a raw schema, and arguments that are nobody's dataclass."""

    name, frees = "fetch_page", False

    def __init__(self, result=None, seconds=None, spec=None, frees=False):
        self.result, self.seconds, self.calls, self.frees = result, seconds, [], frees
        self.schema = {"type": "object", "properties": {"url": {"type": "string", "format": "uri"}}, "required": ["url"]}
        self.described = spec or {"name": self.name, "description": "Fetch a page.", "parameters": self.schema}

    def spec(self):
        return {"type": "function", "function": self.described}

    async def __call__(self, scene, arguments):
        self.calls.append(arguments)
        await asyncio.sleep(0.05 if self.seconds else 0)
        if "url" not in arguments:
            raise ToolError("url is required")
        return self.result or f"page of {arguments['url']}"


def life(renderer, tools, *messages, limits=None, specs=False, window=None):
    views = []

    class Witness(Scripted):
        async def speak(self, view, sampling):
            views.append(view)
            return await super().speak(view, sampling)

    harness = Harness(tools, window or Window(6000), "Go.", limits, specs)
    return asyncio.run(harness.run(TASK, Witness([*messages, say("#1")], renderer, "agent"))), views


def test_a_tool_with_a_raw_schema_is_offered_called_and_answered(renderer):
    fetch = Fetch()
    asked = ({"url": "a", "deep": [1, {"x": None}]}, {}, {"url": "b"})
    turn = call(*(("fetch_page", each) for each in asked), search())
    episode, views = life(renderer, [fetch, search_corpus], turn, specs=True)
    assert fetch.calls == list(asked)
    assert views[0].tools[0] == fetch.spec() and '"format": "uri"' in renderer.decode(views[0].tokens)
    first, second, third, _ = episode.agent.calls
    assert [piece.text for piece in first.pieces] == ["page of a\n"] and third.pieces[0].text == "page of b\n"
    assert (second.error, second.fault) == ("url is required", "arguments")


def test_a_raw_tool_may_show_passages_and_nothing_else(renderer):
    episode, _ = life(renderer, [Fetch([Passage("A", "text of A")])], call(("fetch_page", {"url": "a"})))
    assert [piece.ref for piece in episode.agent.passages] == ["#1"]
    episode, _ = life(renderer, [Fetch({"a": 1})], call(("fetch_page", {"url": "a"})))
    (wrong,) = episode.agent.calls
    assert (wrong.error, wrong.fault) == ("fetch_page must return text or a list of Passage, not dict of str", "environment")


def test_a_raw_tool_that_frees_room_may_be_called_past_the_hard_threshold(renderer):
    window = Window(2000, soft=0.3, hard=0.45, reply=60)
    for frees in (True, False):
        turns = [call(search())] * 3, call(("fetch_page", {"url": "a"}))
        episode, _ = life(renderer, [search_corpus, Fetch(frees=frees)], *turns[0], turns[1], window=window)
        assert bool(episode.agent.calls[-1].error) is not frees


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"description": "no name"}, "the spec of tool fetch_page is not as the OpenAI API has it .KeyError: 'name'"),
        ({"name": "fetch", "parameters": {}}, "tool fetch_page is fetch in its spec"),
        ({"name": "fetch_page", "parameters": object}, "not as the OpenAI API has it .TypeError"),
    ],
)
def test_a_spec_that_no_policy_could_call_by_is_refused(spec, told):
    with pytest.raises(InputError, match=told):
        Harness([Fetch(spec=spec)], Window(900))


def test_a_harness_takes_a_list_of_tools():
    def look(scene) -> str: ...

    for one in (search_corpus, Fetch()):
        with pytest.raises(InputError, match=rf"^a harness takes a list of tools: write Harness\(\[{one.name}\], ...\)$"):
            Harness(one, Window(900))
    with pytest.raises(InputError, match=r"a harness takes a list of tools: write Harness\(\[look\]"):
        Harness(look, Window(900))
    for wrong, name in ((look, "look"), ("search", "'search'"), (Fetch, "Fetch"), (type(search_corpus), "FunctionTool")):
        with pytest.raises(InputError, match=f"^{name} is no tool: put @tool before it"):
            Harness([search_corpus, wrong], Window(900))
    assert list(Harness((each for each in (search_corpus, prune_chunks)), Window(900)).tools) == [
        "search_corpus",
        "prune_chunks",
    ]
    assert isinstance(search_corpus, Tool) and isinstance(Fetch(), Tool) and not isinstance(look, Tool)


def test_a_tool_has_a_deadline_of_its_own_or_the_harness(renderer):
    @tool(seconds=0.02)
    async def hasty(scene, seconds: float) -> str:
        """Has little time."""
        await asyncio.sleep(seconds)
        return "in time"

    @tool(seconds=5, frees=True)
    async def patient(scene, seconds: float) -> str:
        """Has much time."""
        await asyncio.sleep(seconds)
        return "in time"

    @tool
    async def plain(scene, seconds: float) -> str:
        """Has as much as the harness gives."""
        await asyncio.sleep(seconds)
        return "in time"

    assert (hasty.seconds, hasty.frees, patient.seconds, patient.frees, plain.seconds) == (0.02, False, 5, True, None)
    names = ("hasty", "patient", "plain", "fetch_page")
    asked = [(name, {"seconds": 0.4} if name != "fetch_page" else {"url": "a"}) for name in names]
    episode, _ = life(renderer, [hasty, patient, plain, Fetch(seconds=0.01)], call(*asked), limits=Limits(tool_seconds=0.2))
    errors = [made.error for made in episode.agent.calls]
    late = "took longer than"
    assert errors == [f"hasty {late} 0.02 s", "", f"plain {late} 0.2 s", f"fetch_page {late} 0.01 s"]
    assert [made.fault for made in episode.agent.calls] == ["timeout", "", "timeout", "timeout"]


def test_a_deadline_that_could_not_be_kept_is_refused():
    def plain(scene) -> str: ...

    async def waiting(scene) -> str: ...

    for function, seconds in ((plain, 5), (waiting, 0), (waiting, -1)):
        with pytest.raises(InputError, match=f"tool {function.__name__}: only an async function can be stopped"):
            tool(seconds=seconds)(function)
    with pytest.raises(InputError, match="a sub-agent needs more than 0 seconds"):
        Subagent(None, None, seconds=0)


def test_an_assignment_has_the_time_of_its_sub_agent_and_not_of_a_tool(renderer):
    class Slow(Scripted):
        async def speak(self, view, sampling):
            await asyncio.sleep(0.2)
            return await super().speak(view, sampling)

    child = Harness([], Window(2000), "Help.", specs=False)
    times = {"a": 9, "b": 0.05}
    agents = {name: Subagent(Slow([say("done")], renderer, name), child, seconds=times[name]) for name in times}
    assign = assign_task(agents)
    assert assign.seconds == math.inf and Subagent(None, None).seconds == 600
    asked = [("assign_task", {"agent": name, "prompt": "go"}) for name in agents]
    episode, _ = life(renderer, [assign], call(*asked), limits=Limits(tool_seconds=0.01))
    first, second = episode.agent.calls
    late = "its 0.05 s were used up"
    assert (first.error, first.pieces[0].text) == ("", "done\n")
    assert (second.error, second.fault) == (f"the sub-agent stopped without an answer (timeout: {late})", "timeout")
    assert [thread.stop.reason for thread in episode.threads[1:]] == ["finished", "timeout"]
    assert episode.threads[2].stop.detail == late


def test_whose_doing_a_failed_call_was(renderer):
    @tool
    def bug(scene) -> str:
        """A bug of the tool."""
        raise ZeroDivisionError("a bug")

    @tool
    def own_limit(scene) -> str:
        """Its own time limit, not ours."""
        raise TimeoutError("socket timed out")

    @tool
    def dead(scene) -> str:
        """A server behind it."""
        raise PolicyError("no answer from the server")

    @tool
    def says(scene, fault: str) -> str:
        """Says itself whose doing it was."""
        raise ToolError("no", fault)

    faults = {
        ("bug", ()): "environment", ("own_limit", ()): "environment", ("dead", ()): "provider", ("nope", ()): "arguments",
        ("says", (("fault", "provider"),)): "provider", ("says", (("fault", 5),)): "arguments",
        ("search_corpus", (("query", " thing"),)): "",
    }  # fmt: skip
    tools = [bug, own_limit, dead, says, search_corpus]
    episode, _ = life(renderer, tools, call(*((name, dict(given)) for name, given in faults)), limits=Limits(calls=9))
    assert [made.fault for made in episode.agent.calls] == list(faults.values())
    assert all(bool(made.error) == bool(made.fault) and made.began <= made.ended for made in episode.agent.calls)
    many, _ = life(renderer, tools, call(*[search()] * 3), limits=Limits(calls=2))
    assert [made.fault for made in many.agent.calls] == ["", "", "arguments"]
