"""A reward of your own: any async function of an episode. Composed with the search reward, it makes answers short.

python examples/reward.py
"""

import asyncio

from trivium import Corpus, Episode, Harness, Renderer, Scripted, Window, compose, score
from trivium.agents.search import SearchReward, search_tools
from trivium.agents.search.teacher import Imperfection, Teacher
from trivium.agents.search.tools import BRIEF
from trivium.assets import NANO
from trivium.tasks.world import World


async def brevity(episode: Episode) -> dict[str, float]:
    """1 for an answer of one handle, less for each further one."""
    return {"reward": 1 / max(1, len(episode.agent.answer.split()))}


async def main() -> None:
    world = World.make(seed=0)
    tasks = world.tasks(4, hops=(2,))
    harness = Harness(search_tools(Corpus.build(world.documents)), Window(640), BRIEF, specs=False)
    teacher = Scripted(Teacher(Imperfection()).script(tasks), Renderer.load(NANO), name="teacher")
    episodes = [await harness.run(task, teacher) for task in tasks]
    scorer = compose(search=(1.0, SearchReward()), brevity=(0.2, brevity))
    for episode, scores in zip(episodes, await score(episodes, scorer), strict=True):
        print(f"{episode.task.prompt}\n   answered {episode.agent.answer!r}, reward {scores['reward']:.2f}, "
              f"of it search {scores['search/reward']:.2f}, brevity {0.2 * scores['brevity/reward']:.2f}")  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
