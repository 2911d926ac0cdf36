"""Sub-agents: how they are sampled, in which order they go on record, and what a dead one does to a run."""

from __future__ import annotations

import asyncio

import pytest

from tests.laws.walks import TASK, keep, search, search_corpus
from trivium.errors import PolicyError
from trivium.harness import Harness, Limits, Subagent, Window, assign_task, prune_chunks, tool
from trivium.harness.silence import refuse_gaps, refuse_silence, silence, silent
from trivium.policy import Reply, Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Episode, Join, Prune, Sampling, Spawn

CHILD = Harness([search_corpus, prune_chunks], Window(3000), "Help.", specs=False)


def pruning(renderer, name: str, seconds: float = 0.0) -> Subagent:
    """A sub-agent that searches, prunes its own view, and answers, and takes so long for each reply."""
    turns = [call(search()), call(keep("#2")), say(f"{name} is done")]

    class Slow(Scripted):
        async def speak(self, view, sampling) -> Reply:
            await asyncio.sleep(seconds)
            return await super().speak(view, sampling)

    return Subagent(Slow(lambda view: turns[sum(m["role"] == "assistant" for m in view.messages)], renderer, name), CHILD)


def lead(renderer, agents: dict[str, Subagent], *asked: str, sampling: Sampling | None = None, id: str = "") -> Episode:
    harness = Harness([assign_task(agents)], Window(4000), "Lead.", specs=False)
    turn = call(*(("assign_task", {"agent": name, "prompt": "go"}) for name in asked))
    policy = Scripted([turn, say("all done")], renderer, "agent")
    return asyncio.run(harness.run(TASK, policy, sampling=sampling, id=id))


@pytest.mark.parametrize("parents", [None, Sampling(0.0, max_tokens=99)])
@pytest.mark.parametrize("own", [None, Sampling(0.3)])
def test_a_sub_agent_is_sampled_as_its_parent_or_as_it_says(renderer, parents, own):
    drawn = []

    class Noting(Scripted):
        async def speak(self, view, sampling):
            drawn.append(sampling)
            return await super().speak(view, sampling)

    child = Subagent(Noting([say("done")], renderer, "child"), CHILD, own)
    episode = lead(renderer, {"child": child}, "child", sampling=parents)
    wanted = own or parents or Sampling()
    assert drawn == [wanted] and episode.threads[1].segments[0].sampling == wanted


def test_parallel_children_go_on_record_in_call_order_each_behind_its_own_spawn(renderer):
    """However they come to their ends: the last called is the first to end, or the other way round."""
    records = []
    for times in ((0.15, 0.08, 0.0), (0.0, 0.08, 0.15), (0.0, 0.0, 0.0)):
        agents = {name: pruning(renderer, name, seconds) for name, seconds in zip("abc", times, strict=True)}
        episode = lead(renderer, agents, *agents)
        assert [thread.policy for thread in episode.threads] == ["agent", "a", "b", "c"]
        records.append(episode.ops)
        ends = [made.ended for made in episode.agent.calls]
        if times[0] != times[2]:
            assert (ends == sorted(ends)) == (times == tuple(sorted(times))), "they did end in another order"
    assert records[0] == records[1] == records[2]
    assert [type(op) for op in records[0]] == [Spawn, Prune] * 3 + [Join] * 3
    for spawn, prune in zip(records[0][:6:2], records[0][1:6:2], strict=True):
        assert prune.before.thread == spawn.child
    assert [op.child for op in records[0] if isinstance(op, Join)] == [f"0.0.{n}/0" for n in range(3)]


def test_a_childs_children_stand_behind_its_own_spawn(renderer):
    middle = Harness([assign_task({"leaf": pruning(renderer, "leaf")})], Window(3000), "Help.", specs=False)
    turns = [call(("assign_task", {"agent": "leaf", "prompt": "go"})), say("done")]
    policy = Scripted(lambda view: turns[sum(m["role"] == "assistant" for m in view.messages)], renderer, "middle")
    agents = {"middle": Subagent(policy, middle), "leaf": pruning(renderer, "leaf")}
    episode = lead(renderer, agents, "middle", "leaf")
    assert [thread.policy for thread in episode.threads] == ["agent", "middle", "leaf", "leaf"]
    assert [type(op) for op in episode.ops] == [Spawn, Spawn, Prune, Join, Spawn, Prune, Join, Join]
    assert [op.child for op in episode.ops if isinstance(op, Spawn)] == ["0.0.0/0", "0.0.0/0.0.0/0", "0.0.1/0"]


def test_one_call_may_assign_to_several(renderer):
    agents = {name: pruning(renderer, name, seconds) for name, seconds in (("a", 0.1), ("b", 0.0))}

    @tool
    async def ask_all(scene) -> str:
        """Ask everybody."""
        return ", ".join(await asyncio.gather(*(scene.spawn(each, "go") for each in agents.values())))

    harness = Harness([ask_all], Window(4000), specs=False)
    episode = asyncio.run(harness.run(TASK, Scripted([call(("ask_all", {})), say("done")], renderer, "agent")))
    assert episode.agent.calls[0].pieces[0].text == "a is done, b is done\n"
    assert [(thread.id, thread.policy) for thread in episode.threads[1:]] == [("0.0.0/0", "a"), ("0.0.0/1", "b")]


def test_a_dead_sub_agent_is_the_providers_fault_and_stops_a_run(renderer):
    dead = Subagent(Scripted([], renderer, "helper"), CHILD)  # its script has ended before it began
    episode = lead(renderer, {"helper": dead, "well": pruning(renderer, "well")}, "helper", "well")
    first, second = episode.agent.calls
    assert (first.fault, second.fault, episode.agent.stop.reason) == ("provider", "", "finished")
    assert "stopped without an answer (policy: the script of 'helper' has ended" in first.error
    assert silent(episode) and silence(episode) == "the script of 'helper' has ended after 0 messages"
    for refuse in (refuse_silence, refuse_gaps):
        with pytest.raises(PolicyError, match="the script of 'helper' has ended"):
            refuse([episode, episode])


def test_a_sub_agent_that_spoke_elsewhere_is_not_dead_but_leaves_a_gap(renderer):
    once = Subagent(Scripted([say("done")], renderer, "helper"), CHILD)
    well, ill = (lead(renderer, {"helper": once}, "helper", id=id) for id in ("well", "ill"))
    assert (silent(well), silent(ill)) == (False, True)
    refuse_silence([well, ill])
    refuse_gaps([well])
    with pytest.raises(PolicyError, match="in 1 of 2 attempts: the script of 'helper' has ended after 1 messages"):
        refuse_gaps([well, ill])


def test_one_that_broke_in_the_middle_did_speak(renderer):
    half = lead(renderer, {"helper": Subagent(Scripted([call(search())], renderer, "helper"), CHILD)}, "helper")
    assert half.threads[1].stop.reason == "policy" and half.threads[1].turns == 1
    refuse_silence([half])
    with pytest.raises(PolicyError, match="in 1 of 1 attempts"):
        refuse_gaps([half])


def test_silence_is_of_one_policy_in_all_its_lives(renderer):
    """The agent's own, of which the least word is enough."""
    harness = Harness([search_corpus], Window(3000), specs=False)

    def attempt(*script, name="agent"):
        return asyncio.run(harness.run(TASK, Scripted(list(script), renderer, name)))

    dead, ill, well = attempt(), attempt(call(search())), attempt(say("#1"))
    with pytest.raises(PolicyError, match="has ended after 0 messages"):
        refuse_silence([dead, dead])
    for alive in ([dead, ill], [ill], [dead, well], [well], []):
        refuse_silence(alive)
    cut = Episode("cut", TASK, threads=[attempt(say("#1")).agent])
    cut.agent.stop = None  # overtaken before its end
    refuse_silence([cut])
    with pytest.raises(PolicyError, match="of 'other' has ended"):
        refuse_silence([well, attempt(name="other")])


def test_an_ending_other_than_an_answer_is_the_childs_own_affair(renderer):
    """The assignment was in order and no server is dead: what the sub-agent met there ended it."""
    brief = Harness([search_corpus], Window(3000), "Help.", Limits(turns=1), specs=False)
    episode = lead(renderer, {"helper": Subagent(Scripted([call(search())], renderer, "helper"), brief)}, "helper")
    (made,) = episode.agent.calls
    assert (made.error, made.fault) == ("the sub-agent stopped without an answer (turns: 1 turns)", "environment")
    assert not silent(episode) and not any(isinstance(op, Join) for op in episode.ops)


@pytest.mark.parametrize("how", ["gather", "tasks"])
def test_whoever_a_call_left_behind_ends_with_it(renderer, how):
    """It asked two at once, of whom one is dead: the other does not live on beyond the turn, nor join."""
    dead, slow = Subagent(Scripted([], renderer, "dead"), CHILD), pruning(renderer, "slow", 5.0)

    @tool
    async def ask_both(scene) -> str:
        """Ask both."""
        if how == "gather":
            return ", ".join(await asyncio.gather(scene.spawn(dead, "go"), scene.spawn(slow, "go")))
        tasks = [asyncio.create_task(scene.spawn(each, "go")) for each in (dead, slow)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return str(done.pop().exception())

    harness = Harness([ask_both], Window(4000), specs=False)

    async def run():
        episode = await harness.run(TASK, Scripted([call(("ask_both", {})), say("done")], renderer, "agent"))
        return episode, asyncio.all_tasks() - {asyncio.current_task()}

    episode, left = asyncio.run(run())
    assert not left and [thread.stop.reason for thread in episode.threads] == ["finished", "policy", "timeout"]
    assert episode.threads[2].stop.detail == "its assignment was cancelled"
    assert [type(op) for op in episode.ops] == [Spawn, Spawn], "nobody joins who gave no answer"
    assert bool(episode.agent.calls[0].error) == (how == "gather")


def test_whom_one_left_behind_had_assigned_something_is_on_record_too(renderer):
    leaf = pruning(renderer, "leaf", 0.1)
    middle = Harness([assign_task({"leaf": leaf})], Window(3000), "Help.", specs=False)
    slow = Subagent(Scripted([call(("assign_task", {"agent": "leaf", "prompt": "go"}))], renderer, "slow"), middle)

    class Late(Scripted):
        async def speak(self, view, sampling) -> Reply:
            await asyncio.sleep(0.15)
            return await super().speak(view, sampling)

    dead = Subagent(Late([], renderer, "dead"), CHILD)

    @tool
    async def ask_both(scene) -> str:
        """Ask both."""
        return ", ".join(await asyncio.gather(scene.spawn(dead, "go"), scene.spawn(slow, "go")))

    harness = Harness([ask_both], Window(4000), specs=False)
    episode = asyncio.run(harness.run(TASK, Scripted([call(("ask_both", {})), say("done")], renderer, "agent")))
    assert [thread.policy for thread in episode.threads] == ["agent", "dead", "slow", "leaf"]
    assert [op.child for op in episode.ops] == [thread.id for thread in episode.threads[1:]]
    assert episode.threads[3].calls[0].name == "search_corpus" and episode.threads[3].stop.reason == "timeout"
