"""Law 7: no silent no-op. Law 8: failure is data with one owner."""

from __future__ import annotations

import asyncio
import shutil
from enum import Enum

import pytest

from tests.laws.walks import TASK, keep, search, search_corpus
from trivium.errors import InputError, Unsupported
from trivium.harness import Harness, Limits, Passage, Subagent, ToolError, Window, assign_task, prune_chunks, tool
from trivium.policy import Renderer, Reply, Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Spawn, Task


@tool
async def sleep(scene, seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "slept"


@tool
def break_down(scene) -> str:
    """A tool with a bug."""
    raise ZeroDivisionError("a bug")


@tool
def refuse(scene) -> str:
    """A tool that says no."""
    raise ToolError("not today")


class Kind(Enum):
    person = "person"
    place = "place"


@tool
def find(scene, kind: Kind) -> str:
    """Find one."""
    return kind.value


def run(renderer, script, tools=(search_corpus, sleep, break_down, refuse, prune_chunks), window=Window(6000), **limits):
    harness = Harness(list(tools), window, "Go.", Limits(**{"tool_seconds": 0.2, **limits}), specs=False)
    return asyncio.run(harness.run(TASK, Scripted(script, renderer, "agent")))


def test_each_call_fails_alone_and_the_policy_is_told(renderer):
    calls = [("sleep", {"seconds": 5}), ("break_down", {}), ("refuse", {}), ("nope", {}), ("sleep", {"seconds": "x"}), search()]
    episode = run(renderer, [call(*calls), say("#1")])
    errors = [c.error for c in episode.agent.calls]
    assert [bool(error) for error in errors] == [True] * 5 + [False]
    told = ["longer than 0.2 s", "ZeroDivisionError", "not today", "no tool 'nope'", "seconds"]
    assert all(wanted in error for wanted, error in zip(told, errors, strict=False))
    text = renderer.decode(episode.agent.segments[0].tokens)
    assert all(f"Error: {error}" in text for error in errors[:5])
    assert len(episode.agent.calls[5].pieces) == 4 and episode.agent.stop.reason == "finished"


def test_a_tool_that_says_no_without_a_word_has_failed_too(renderer):
    @tool
    def silent(scene) -> str:
        """Says no."""
        raise ToolError

    episode = run(renderer, [call(("silent", {})), say("#1")], tools=[silent])
    assert episode.agent.calls[0].error == "silent failed"
    assert "Error: silent failed" in renderer.decode(episode.agent.segments[0].tokens)


def test_what_an_argument_is_made_of_stands_in_its_schema():
    schema = find.spec()["function"]["parameters"]
    assert schema["properties"] == {"kind": {"$ref": "#/$defs/Kind"}}
    assert schema["$defs"]["Kind"]["enum"] == ["person", "place"]
    assert "$defs" not in refuse.spec()["function"]["parameters"]


def test_calls_of_a_turn_run_at_once_and_enter_in_call_order(renderer):
    calls = [("sleep", {"seconds": 0.15}), ("sleep", {"seconds": 0.05}), ("sleep", {"seconds": 0.1})]
    episode = run(renderer, [call(*calls), say("#1")], tool_seconds=10)
    made = episode.agent.calls
    assert [c.arguments["seconds"] for c in made] == [0.15, 0.05, 0.1]
    assert max(c.began for c in made) < min(c.ended for c in made)  # all had begun before any had ended
    assert made[1].ended < made[0].ended


def test_broken_json_goes_back_as_an_error_costs_a_turn_and_stays_in_the_trace(renderer):
    broken = renderer.tokenizer.encode('<tool_call>\n{"name": "search_corpus", "arguments": {"query": }\n</tool_call>')
    replies = [Reply([*broken, renderer.stop_tokens[0]], [-1.0] * (len(broken) + 1), [3] * (len(broken) + 1))]

    class Stutters:
        name, version = "agent", 3

        def __init__(self):
            self.renderer = renderer

        async def speak(self, view, sampling):
            return replies.pop() if replies else Reply(message=say("#1"))

    harness = Harness([search_corpus], Window(4000), specs=False)
    episode = asyncio.run(harness.run(TASK, Stutters()))
    (broken_call,) = episode.agent.calls
    assert "cannot be read" in broken_call.error and episode.agent.turns == 2
    assert "Error: this tool call cannot be read" in renderer.decode(episode.agent.segments[0].tokens)
    assert episode.agent.segments[0].logprobs[episode.agent.segments[0].sampled()[0].start] == -1.0


def test_a_policy_that_cannot_speak_ends_its_own_thread_only(renderer):
    harness = Harness([search_corpus], Window(4000), specs=False)

    async def both():
        dead = Scripted([call(search())], renderer, "agent")  # its script ends too early
        well = Scripted([call(search()), say("#1")], renderer, "agent")
        return await asyncio.gather(harness.run(TASK, dead), harness.run(TASK, well))

    dead, well = asyncio.run(both())
    assert dead.agent.stop.reason == "policy" and "script" in dead.agent.stop.detail
    assert well.agent.stop.reason == "finished"


@pytest.mark.parametrize("field", ["logprobs", "kept"])
def test_a_policy_that_tells_of_some_tokens_only_ends_its_own_thread(renderer, field):
    tokens = [*renderer.encode("#1"), renderer.stop_tokens[0]]
    told = {"logprobs": [-1.0] * len(tokens), "kept": [1.0] * len(tokens)} | {field: [0.5]}

    class Short:
        name, version = "agent", 0

        async def speak(self, view, sampling):
            return Reply(tokens, told["logprobs"], [0] * len(tokens), told["kept"])

    policy = Short()
    policy.renderer = renderer
    episode = asyncio.run(Harness([search_corpus], Window(4000), specs=False).run(TASK, policy))
    assert episode.agent.stop.reason == "policy" and "gave 1 logprobs" in episode.agent.stop.detail


def test_past_the_hard_threshold_only_pruning_and_answers_are_possible(renderer):
    window = Window(2000, soft=0.3, hard=0.45, reply=60)
    script = [*[call(search())] * 4, call(keep("#2")), call(search()), say("#2")]
    episode = run(renderer, script, window=window)
    assert [c.error for c in episode.agent.calls] == ["", "", "", "the window is nearly full: prune_chunks or answer", "", ""]
    assert "Prune or answer." in renderer.decode(episode.agent.segments[0].tokens)


def test_results_that_do_not_fit_are_left_out_and_can_be_found_again(renderer):
    window = Window(600, soft=0.9, hard=1.0, reply=60)
    many = ("search_corpus", {"query": " thing", "limit": 12})
    episode = run(renderer, [call(many), call(keep("#1")), call(many), say("#1")], window=window)
    first, _, second = episode.agent.calls
    assert 0 < len(first.pieces) < 12
    assert second.pieces and not {p.source for p in first.pieces} & {p.source for p in second.pieces}
    for segment in episode.agent.segments:
        assert all(span.start <= window.budget - window.reply for span in segment.sampled())


def test_a_turn_whose_prune_makes_room_for_its_results_is_not_the_last(renderer):
    window = Window(700, soft=0.9, hard=1.0, reply=140)  # beside the error the view is over 700 before the prune, 579 after
    many = ("search_corpus", {"query": " thing", "limit": 12})
    episode = run(renderer, [call(many), call(keep("#1", "#2", "#3"), ("nope", {})), say("#1")], window=window)
    before, after = episode.agent.segments
    assert len(before.tokens) > window.budget > len(after.tokens) > window.budget - window.reply
    assert episode.agent.stop.reason == "finished"


def test_the_usage_line_counts_every_token_of_the_view(renderer):
    episode = run(renderer, [call(search()), call(search()), call(keep("#2")), say("#1")])
    for segment in episode.agent.segments:
        for span in segment.sampled()[1:]:
            line = renderer.decode(segment.tokens[: span.start]).rpartition("[Token usage: ")[2].partition("/")[0]
            assert int(line.replace(",", "")) == span.start


def test_limits_end_an_episode_with_a_reason(renderer):
    assert run(renderer, [call(search())] * 9, turns=3).agent.stop.reason == "turns"
    many = run(renderer, [call(*[search(f" {n}") for n in range(5)]), say("#1")], calls=2)
    assert [bool(c.error) for c in many.agent.calls] == [False, False, True, True, True]


def test_a_prompt_larger_than_the_window_is_one_clear_error(renderer):
    harness = Harness([search_corpus], Window(200), "Go.", specs=False)
    with pytest.raises(InputError, match="the prompt takes .* tokens .* the window holds 200"):
        asyncio.run(harness.run(Task("t", "why " * 100), Scripted([say("x")], renderer)))


def test_options_that_cannot_be_honoured_are_refused_at_start(renderer):
    for wrong in ({"soft": 0.9, "hard": 0.5}, {"reply": 9000}):
        with pytest.raises(InputError):
            Window(800, **wrong)
    with pytest.raises(InputError, match="share a name"):
        Harness([search_corpus, search_corpus], Window(800))
    with pytest.raises(InputError, match="annotate query"):

        @tool
        def untyped(scene, query) -> list[Passage]:
            return []

    class Never:
        def get_stop_token_ids(self):
            return [0]

        def render_ids(self, *_, **__):
            return [1]

        def bridge_to_next_turn(self, *_, **__):
            return None

    with pytest.raises(Unsupported, match="cannot continue"):
        Renderer(renderer.tokenizer, Never())


@pytest.mark.parametrize("whose", ["agent", "sub-agent"])
def test_a_policy_whose_own_work_was_cancelled_could_not_speak(renderer, whose):
    """Nobody took the attempt's time away, nor the assignment's: it is neither overtaken nor late."""

    class Gone(Scripted):
        async def speak(self, view, sampling):
            waited = asyncio.get_running_loop().create_future()
            waited.cancel()
            return await waited

    agents = {"helper": Subagent(Gone([], renderer, "helper"), Harness([], Window(2000), "Help.", specs=False))}
    harness = Harness([assign_task(agents)], Window(4000), "Lead.", specs=False)
    script = [call(("assign_task", {"agent": "helper", "prompt": "go"})), say("done")]
    lead = Gone([], renderer, "lead") if whose == "agent" else Scripted(script, renderer)
    episode = asyncio.run(harness.run(TASK, lead))
    stop = episode.threads[-1].stop
    assert (stop.reason, stop.detail) == ("policy", f"what {'lead' if whose == 'agent' else 'helper'} waited for was cancelled")


def test_a_missing_model_is_one_clear_error(tmp_path):
    with pytest.raises(InputError, match="no model at"):
        Renderer.load(tmp_path / "nowhere")


def test_a_model_without_a_vocabulary_is_one_clear_error(tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "net")
    (tmp_path / "net" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="no model at .*net.*no vocabulary"):
        Renderer.load(tmp_path / "net")
    (tmp_path / "net" / "tekken.json").write_text("{}")  # a vocabulary, as Mistral writes one, if a torn one
    with pytest.raises(InputError) as told:
        Renderer.load(tmp_path / "net")
    assert "no vocabulary" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", '{"version": "9.0"}'),
        ("tokenizer_config.json", "[]"),
    ],
)
def test_a_torn_tokenizer_is_one_error_that_names_the_folder(tiny_model, tmp_path, name, harm):
    shutil.copytree(tiny_model, tmp_path / "net")
    (tmp_path / "net" / name).write_text(harm)
    with pytest.raises(InputError, match="no model at .*net"):
        Renderer.load(tmp_path / "net")


def spawned(renderer, policy, window=Window(3000)):
    """An episode that hands one assignment to a sub-agent."""
    helper = Subagent(policy, Harness([search_corpus], window, "Help.", specs=False))
    tools = [assign_task({"helper": helper})]
    return run(renderer, [call(("assign_task", {"agent": "helper", "prompt": "Look " * 30})), say("alone")], tools)


def test_a_sub_agent_that_cannot_speak_is_data_on_its_thread_and_its_call(renderer):
    class Buggy(Scripted):
        async def speak(self, view, sampling):
            raise ZeroDivisionError("a bug")

    silent, buggy = Scripted([], renderer, "frozen"), Buggy([], renderer, "frozen")
    for policy, told in ((silent, "script"), (buggy, "ZeroDivisionError: a bug")):
        episode = spawned(renderer, policy)
        (child,) = episode.threads[1:]
        assert child.stop.reason == "policy" and told in child.stop.detail
        assert episode.agent.calls[0].error and episode.agent.answer == "alone"
        assert [type(op) for op in episode.ops] == [Spawn]


def test_whoever_an_assignment_assigned_stays_on_record_when_its_time_is_over(renderer):
    """The agent's sub-agent assigns another one, which hangs: both threads are there, with what they said."""

    class Hangs(Scripted):
        async def speak(self, view, sampling):
            if self._count:
                await asyncio.sleep(9)
            return await super().speak(view, sampling)

    leaf = Subagent(Hangs([call(search()), say("late")], renderer, "leaf"), Harness([search_corpus], Window(3000), specs=False))
    assigned = call(("assign_task", {"agent": "helper", "prompt": "Look."}))
    tools = [assign_task({"helper": leaf})]
    middle = Subagent(Scripted([assigned], renderer, "middle"), Harness(tools, Window(3000), specs=False), seconds=0.3)
    outer = Harness([assign_task({"helper": middle})], Window(3000), specs=False)
    episode = asyncio.run(outer.run(TASK, Scripted([assigned, say("alone")], renderer, "agent")))
    assert [thread.policy for thread in episode.threads] == ["agent", "middle", "leaf"]
    assert [op.child for op in episode.ops] == [thread.id for thread in episode.threads[1:]]
    assert episode.threads[2].calls[0].name == "search_corpus" and episode.agent.answer == "alone"
    for thread, fault in ((episode.agent, "timeout"), (episode.threads[1], "aborted")):
        assert thread.calls[0].error and thread.calls[0].ended and thread.calls[0].fault == fault


def test_an_assignment_that_does_not_fit_is_the_error_of_its_call_alone(renderer):
    class Narrow(Scripted):
        context = 500

    wide, narrow = (kind([say("It is doc 1.")], renderer, "frozen") for kind in (Scripted, Narrow))
    for policy, window, told in (
        (wide, Window(80), "the prompt takes"),
        (narrow, Window(3000), "more than frozen's context of 500"),
    ):
        episode = spawned(renderer, policy, window)
        assert told in episode.agent.calls[0].error and len(episode.threads) == 1 and not episode.ops
