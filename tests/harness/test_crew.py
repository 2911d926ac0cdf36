"""Sub-agents that a policy creates: what comes back, what is refused and how, and the critical steps of it all."""

from __future__ import annotations

import asyncio
from io import StringIO

import pytest
from rich.console import Console

from tests.laws.walks import TASK, search, search_corpus
from trivium.errors import InputError
from trivium.harness import Crew, Harness, Limits, Subagent, Window
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Episode, critical_steps, episode_stages
from trivium.viewer.episodes import episode_panel

CHILD = Harness([search_corpus], Window(3000), "Help.", specs=False)


def create(name: str = "finder", prompt: str = "Search.") -> tuple[str, dict]:
    return "create_subagent", {"name": name, "system_prompt": prompt}


def assign(agent: str = "finder", prompt: str = "Look") -> tuple[str, dict]:
    return "assign_task", {"agent": agent, "prompt": prompt}


def lead(crew: Crew, *turns: dict, limits: Limits | None = None) -> Episode:
    harness = Harness([search_corpus, *crew.tools], Window(40000), "Lead.", limits or Limits(), specs=False, place=crew)
    return asyncio.run(harness.run(TASK, Scripted(list(turns), crew.member.policy.renderer, "agent")))


class Finder(Scripted):
    """Searches as often as its assignment has words, then says which agent it was told to be."""

    def __init__(self, renderer):
        super().__init__(self.next, renderer, "frozen")
        self.lives = self.most = 0

    def next(self, view) -> dict:
        done = sum(message["role"] == "tool" for message in view.messages)
        asked = next(message["content"] for message in view.messages if message["role"] == "user")
        return call(search()) if done < len(asked.split()) else say(view.messages[0]["content"].split()[-1])

    async def speak(self, view, sampling):
        self.lives += 1
        self.most = max(self.most, self.lives)
        await asyncio.sleep(0)
        self.lives -= 1
        return await super().speak(view, sampling)


def shown(episode: Episode) -> list[str]:
    return [made.error or made.pieces[0].text.strip() for made in episode.agent.calls]


def test_an_agent_may_be_created_and_assigned_in_one_turn_and_is_told_what_it_was_created_with(renderer):
    crew = Crew(Subagent(Finder(renderer), CHILD))
    episode = lead(crew, call(create(), create("reader", "Read."), assign(), assign("reader"), assign()), say("done"))
    assert shown(episode) == ["Created.", "Created.", "Search.", "Read.", "Search."]
    assert [thread.policy for thread in episode.threads] == ["agent", "frozen", "frozen", "frozen"]
    assert episode.snapshots == ['{"finder": "Search.", "reader": "Read."}']
    assert len({tuple(thread.segments[0].tokens) for thread in episode.threads[1:]}) == 2


def test_critical_steps_are_main_steps_and_the_longest_branch(renderer):
    crew = Crew(Subagent(Finder(renderer), CHILD))
    parallel = call(create(), assign(prompt="a"), assign(prompt="a b c"), assign(prompt="a b"))
    episode = lead(crew, parallel, call(search(), search()), say("done"))
    assert [(stage.main, stage.longest) for stage in episode_stages(episode)] == [(1, 4), (2, 0), (1, 0)]
    assert [steps for _, steps in episode_stages(episode)[0].branches] == [2, 4, 3]
    assert critical_steps(episode) == 8


def test_the_budget_of_critical_steps_is_told_handed_down_and_ends_who_has_no_answer(renderer):
    crew = Crew(Subagent(Finder(renderer), CHILD))
    steps = Limits(critical=6)
    enough = lead(crew, call(create(), assign(prompt="a b")), say("done"), limits=steps)
    assert enough.agent.stop.reason == "finished" and critical_steps(enough) == 5
    assert "[Steps: 4/6]" in renderer.decode(enough.agent.segments[-1].tokens)
    late = lead(crew, call(create(), assign(prompt="a b c d e f")), say("done"), limits=steps)
    assert shown(late)[1] == "the sub-agent stopped without an answer (steps: 4 critical steps)"
    assert late.agent.stop.reason == "finished" and critical_steps(late) == 6
    alone = lead(crew, *[call(search())] * 8, limits=steps)
    assert (alone.agent.stop.reason, critical_steps(alone)) == ("steps", 6)
    over = lead(crew, *[call(search())] * 4, call(create(), assign()), limits=steps)
    assert shown(over)[-1] == "no critical steps are left for an assignment: answer"


@pytest.mark.parametrize(
    ("turn", "error"),
    [
        (call(assign("ghost")), "there is no agent 'ghost'; there is none: create it first"),
        (call(create(), assign("ghost")), "there is no agent 'ghost'; there are finder"),
        (call(create(), create()), "there is an agent 'finder' already: assign to it, or take another name"),
        (call(create("")), "a sub-agent needs a name to be assigned to by"),
        (call(create(), assign(prompt="word " * 3000)), "the assignment cannot begin: the prompt takes"),
    ],
)
def test_a_bad_call_is_one_clear_error_and_the_episode_goes_on(renderer, turn, error):
    episode = lead(Crew(Subagent(Finder(renderer), CHILD)), turn, call(create("other"), assign("other")), say("done"))
    assert error in shown(episode)[len(turn["tool_calls"]) - 1]
    assert episode.agent.calls[len(turn["tool_calls"]) - 1].fault == "arguments"
    assert shown(episode)[-1] == "Search." and episode.agent.stop.reason == "finished"


def test_a_hundred_assignments_in_one_turn_are_done_as_far_as_the_limit_and_at_most_so_many_at_once(renderer):
    finder = Finder(renderer)
    crew = Crew(Subagent(finder, CHILD), at_once=7)
    hundred = call(create(), *[assign()] * 100)
    episode = lead(crew, hundred, say("done"), limits=Limits(calls=61))
    assert shown(episode)[1:61] == ["Search."] * 60 and set(shown(episode)[61:]) == {"at most 61 calls in one turn"}
    assert finder.most == 7 and len(episode.threads) == 61
    assert critical_steps(episode) == 4, "calls that were refused are no steps"


def test_one_that_never_answers_and_one_whose_policy_died_touch_no_sibling(renderer):
    class Moody(Finder):
        async def speak(self, view, sampling):
            if "dead" in view.messages[1]["content"]:
                raise ConnectionError("the server is gone")
            if "slow" in view.messages[1]["content"]:
                await asyncio.sleep(3600)
            return await super().speak(view, sampling)

    crew = Crew(Subagent(Moody(renderer), CHILD, seconds=0.2))
    episode = lead(crew, call(create(), assign(prompt="slow"), assign(prompt="dead"), assign()), say("done"))
    _, slow, dead, well = shown(episode)
    assert slow == "the sub-agent stopped without an answer (timeout: its 0.2 s were used up)"
    assert dead == "the sub-agent stopped without an answer (policy: ConnectionError: the server is gone)"
    assert well == "Search." and episode.agent.stop.reason == "finished"
    assert [made.fault for made in episode.agent.calls] == ["", "timeout", "provider", ""]


def test_recursion_is_off_by_default_and_ends_where_the_limit_is(renderer):
    deeper = Scripted(lambda view: _deeper(view), renderer, "frozen")
    off = lead(Crew(Subagent(deeper, CHILD)), call(create("deep"), assign("deep")), say("done"))
    assert shown(off)[1] == "there is no tool 'assign_task'; there are search_corpus"
    crew = Crew(Subagent(deeper, CHILD), at_once=1, recursive=True)
    on = lead(crew, call(create("deep"), assign("deep")), say("done"), limits=Limits(depth=3))
    assert shown(on)[1] == "assignments go 3 deep at most: do it yourself" and len(on.threads) == 4


def _deeper(view) -> dict:
    """Hands on what it was handed, and says what came of it."""
    results = [message for message in view.messages if message["role"] == "tool"]
    return say(results[-1]["content"].removeprefix("Error: ").split("\n")[0]) if results else call(assign("deep"))


def test_who_answers_and_how_many_at_once_may_change_during_a_run(renderer):
    small, large = Finder(renderer), Finder(renderer)
    large.name = "large"
    crew = Crew(Subagent(small, CHILD), at_once=1)
    turn = call(create(), *[assign()] * 6)
    assert {thread.policy for thread in lead(crew, turn, say("done")).threads} == {"agent", "frozen"} and small.most == 1
    crew.employ(Subagent(large, CHILD), at_once=3)
    assert {thread.policy for thread in lead(crew, turn, say("done")).threads} == {"agent", "large"} and large.most == 3


def test_what_can_never_work_is_said_at_once(renderer):
    member = Subagent(Finder(renderer), CHILD)
    with pytest.raises(InputError, match="at least one sub-agent works at a time, not 0"):
        Crew(member, at_once=0)
    with pytest.raises(InputError, match="room for an agent at least"):
        Crew(member, most=0)
    crew = Crew(member, most=1)
    assert "as many as there may be" in shown(lead(crew, call(create("a"), create("b")), say("done")))[1]
    with pytest.raises(InputError, match="needs none"):
        Crew(Subagent(member.policy, Harness([], Window(300), place=crew)), recursive=True)


def test_tools_of_a_crew_without_its_place_say_what_is_missing(renderer):
    crew = Crew(Subagent(Finder(renderer), CHILD))
    harness = Harness(crew.tools, Window(3000), specs=False)
    episode = asyncio.run(harness.run(TASK, Scripted([call(create()), say("done")], renderer, "agent")))
    assert "a harness whose place is their Crew" in shown(episode)[0]


def test_an_episode_is_drawn_over_its_critical_steps(renderer):
    crew = Crew(Subagent(Finder(renderer), CHILD))
    episode = lead(crew, call(create(), assign(prompt="a"), assign(prompt="a b c")), call(search()), say("done"))
    with Console(width=100, record=True, file=StringIO()) as console:
        console.print(episode_panel(episode))
    lines = console.export_text().split("\n")
    at = next(number for number, line in enumerate(lines) if "7 critical steps, 9 in all" in line)
    assert [line.strip("│ ") for line in lines[at + 1 : at + 4]] == [
        "agent 0           ■    ■■",
        "frozen 0.0.1/0   ■■",
        "frozen 0.0.2/0   ■■■■",
    ]
