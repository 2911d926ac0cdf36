"""The loop of docs/design.md, on one screen: sample groups, score them, learn, publish. Runs in a minute on a laptop.

python examples/loop.py
"""

import torch

from trivium import CISPO, Batch, Engine, Harness, Learner, Limits, Network, Plan, Sampling, Window, publish, rollouts, run_loop
from trivium.agents.search import SearchReward, search_tools
from trivium.agents.search.citation import repetition
from trivium.agents.search.tools import BRIEF
from trivium.assets import NANO
from trivium.corpus import Corpus
from trivium.tasks.world import World


async def main() -> None:
    world = World.make(seed=0)
    corpus = Corpus.build(world.documents)
    window, limits = Window(640, soft=0.5, hard=0.85), Limits(turns=6)
    harness = Harness(search_tools(corpus, 6), window, BRIEF, limits, specs=False, ending=repetition)
    engine = Engine(NANO, context=640)  # speaks
    learner = Learner(Network.load(NANO), CISPO(), lr=2e-4)  # learns, on its own copy of the weights
    probe = engine.renderer.encode("a few words whose logprobs must agree after every update")

    source = rollouts(
        harness,
        world.tasks(64, hops=(1,)),
        engine,
        lambda step: SearchReward(beta=4.0),
        Plan(groups=4, size=8, steps=3, sampling=Sampling(max_tokens=64)),
    )
    async for groups, scores in source:
        step = await learner.step(Batch(groups))
        publish(learner.network, step.version, engine, probe)
        print(f"version {step.version}: reward {scores['reward']:.2f}, recall {scores['output_recall']:.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_loop(main())  # Ctrl-C ends it with one line
