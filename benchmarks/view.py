"""How long a person waits for the page of a run with many episodes.

    python benchmarks/view.py [--episodes 10000] [--json FILE]

Prints `first_page_s` (a list of a hundred, from a cold start), `all_read_s` (until every episode is in the index) and
`search_s` (a page with words and a condition, once all is read). The episodes are copies of one that the harness really ran,
with ids, tasks and scores of their own.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import tyro

from trivium.assets import NANO
from trivium.harness import Harness, Window, tool
from trivium.policy import Renderer, Scripted
from trivium.policy.scripted import call, say
from trivium.recipe.show import Book
from trivium.recipe.view import Desk
from trivium.trace import Episode, Score, Store, Task
from trivium.viewer.page import Query

SCORES = 16


@tool
def look_up(scene, name: str) -> str:
    """What is known of a name."""
    return f"{name} lives in Benmar. " * 8


def fill(path: Path, episodes: int) -> None:
    """A store of so many episodes of three turns, each with sixteen scores."""
    script = [call(("look_up", {"name": "Ann"})), call(("look_up", {"name": "Bob"})), say("Benmar")]
    policy = Scripted(script, Renderer.load(NANO), "agent")
    first = asyncio.run(Harness([look_up], Window(2048)).run(Task("t", "Where does Ann live?", {"hops": 1}), policy))
    store = Store(path)
    for start in range(0, episodes, 1000):
        part = [_copy(first, number) for number in range(start, min(episodes, start + 1000))]
        scores = [Score(each.id, f"score_{k}", k / 7, "test") for each in part for k in range(SCORES - 1)]
        store.write(part, scores + [Score(each.id, "reward", len(each.id) % 7 / 7, "test") for each in part])
    store.close()


def _copy(episode: Episode, number: int) -> Episode:
    return replace(episode, id=f"rl/{number // 128}/t{number}/0", task=replace(episode.task, id=f"t{number}"))


def main(episodes: int = 10_000, json_file: Path | None = None) -> None:
    """Measure, print, and write to `--json-file` where it is given."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "episodes.db")
        fill(path, episodes)
        numbers = {"episodes": float(episodes), **measure(path)}
    text = json.dumps(numbers, indent=1)
    print(text)
    if json_file:
        json_file.write_text(text + "\n")


def measure(path: Path) -> dict[str, float]:
    began = time.perf_counter()
    desk = Desk(Book.open(str(path)))
    desk.front(Query())
    first = time.perf_counter() - began
    while not desk.refresh():
        time.sleep(0.05)
    whole = time.perf_counter() - began
    again = time.perf_counter()
    desk.front(Query(text="ann", where=("reward>0.5",), order="reward"))
    return {"first_page_s": first, "all_read_s": whole, "search_s": time.perf_counter() - again}


if __name__ == "__main__":
    tyro.cli(main)
