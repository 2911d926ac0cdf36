"""An agent of your own: a tool, questions, a reward and logged conversations. It imitates these, then learns beyond them.

python examples/agent.py            (docs/your-agent.md goes through it)
"""

import asyncio
import random

import torch

import trivium as tv
from trivium.agents.search.recipe import NANO
from trivium.policy.scripted import call, say
from trivium.tasks.names import name

DICE = random.Random(0)
STAFF = {name(DICE, "person"): (name(DICE, "city"), name(DICE, "city")) for _ in range(448)}  # place of birth, of work


@tv.tool
def look_up(scene, person: str) -> str:
    """What the company knows of a person."""
    if person.strip() not in STAFF:
        raise tv.ToolError("nobody has that name")
    return "{0} was born in {1}. {0} works in {2}.".format(person.strip(), *STAFF[person.strip()])


async def right(episode) -> dict[str, float]:
    return {"reward": float(episode.agent.answer.strip() == episode.task.truth["city"])}


def logged(person: str) -> list[dict]:
    """What was said, from the log of an agent that takes the wrong city in six cases of ten."""
    return [call(("look_up", {"person": f" {person}"})), say(f" {STAFF[person][DICE.random() > 0.6]}")]


async def main() -> None:
    tasks = [tv.Task(person, f"In which city does {person} work?", {"city": STAFF[person][1]}) for person in STAFF]
    learned, held_out = tasks[:384], tasks[384:]
    harness = tv.Harness([look_up], tv.Window(200, reply=40), limits=tv.Limits(turns=3), specs=False)
    engine, network = tv.Engine(NANO, context=200), tv.Network.load(NANO)  # one speaks, the other learns
    warm, greedy = tv.Sampling(max_tokens=40), tv.Sampling(temperature=0, max_tokens=40)
    probe = engine.renderer.encode("a few words whose logprobs must agree after every update")

    async def measure(when: str) -> None:
        result, _ = await tv.evaluate(harness, held_out, engine, right, sampling=greedy)
        print(f"{when}: {result.means()['reward']:.0%} of {len(held_out)} held-out questions answered rightly")

    await measure("before")
    log = [await harness.run(task, tv.Scripted(logged(task.id), engine.renderer, "agent")) for task in learned]
    async for event in tv.sft(tv.Learner(network, tv.SFT(), lr=1e-3), log, steps=16, size=32):
        tv.publish(network, event.step, engine, probe)
    await measure("after imitation")
    source = tv.rollouts(harness, learned, engine, lambda step: right, tv.Plan(groups=8, size=8, steps=8, sampling=warm))
    async for event in tv.rl(source, tv.Learner(network, tv.CISPO(), lr=4e-4), engine, probe):
        print(f"step {event.step}: reward {event.metrics['reward']:.2f}")
    await measure("after RL")


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(main())
