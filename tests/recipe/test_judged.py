"""What was lived before is judged anew where that can be, and keeps its scores where its place is gone."""

from __future__ import annotations

import asyncio

import pytest

from tests.coder.house import attempt
from trivium.policy.scripted import say
from trivium.recipe.judged import judged
from trivium.reward import opinions
from trivium.trace import Episode, Store


class Judge:
    """Can say nothing of an episode that left something in a place."""

    def __init__(self, reward: float, version: str = "1") -> None:
        self.reward, self.version = reward, version

    async def __call__(self, episode: Episode) -> dict[str, float]:
        if episode.snapshots:
            raise LookupError("its place is gone")
        return {"reward": self.reward}


@pytest.mark.parametrize("version", ["1", "2"])
def test_what_was_left_in_a_place_that_is_gone_keeps_the_scores_of_its_day(tmp_path, renderer, version):
    placed, bare = (attempt(renderer, say("Done.")) for _ in range(2))
    placed.id, bare.id, bare.snapshots = "placed", "bare", []
    assert placed.snapshots, "a coder's episode leaves its files"
    store = Store(tmp_path / "episodes.db")
    store.write([placed, bare], opinions([placed, bare], [{"reward": 0.5}] * 2, Judge(0.5)))
    gone, anew = asyncio.run(judged([placed, bare], Judge(0.7, version), store))
    assert anew == {"reward": 0.7}, "a judge that was mended is heard"
    if version == "1":
        assert gone == {"reward": 0.5}
    else:  # another judge's scores are not passed off as its own
        assert isinstance(gone, LookupError)
