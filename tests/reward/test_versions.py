"""A score says which version of its scorer gave it."""

from __future__ import annotations

from trivium.agents.search.reward import SearchReward
from trivium.harness import Window
from trivium.reward import compose, opinions
from trivium.reward.base import version
from trivium.trace import Episode, Score, Task


async def plain(episode: Episode) -> dict[str, float]:
    return {"reward": 1.0}


class Judge:
    version = 7

    async def __call__(self, episode: Episode) -> dict[str, float]:
        return {"reward": 1.0}


def test_opinions_have_the_version_that_their_scorer_says():
    episode = Episode("e", Task("t", "?"))
    assert opinions([episode], [{"reward": 1.0}], plain) == [Score("e", "reward", 1.0, "plain", "1")]
    assert opinions([episode], [{"reward": 1.0}], Judge()) == [Score("e", "reward", 1.0, "Judge", "7")]
    both = compose(outcome=(0.5, Judge()), style=(2, plain))
    assert version(both) == "outcome=0.5*Judge(7) style=2*plain(1)"


def test_the_search_reward_is_another_version_where_a_term_differs():
    assert SearchReward().version == SearchReward(window=Window(640)).version == "1"
    assert SearchReward(beta=2.5, turns=10).version == "beta=2.5 turns=10"
    assert SearchReward(answer=0.0).version == "answer=0"
