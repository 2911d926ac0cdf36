"""How many episodes with sub-agents one process holds at once: scripted policies, so that nothing but the harness works.

    python benchmarks/concurrency.py --json concurrency.json             # 1,000 episodes, each with four sub-agents
    python benchmarks/concurrency.py --episodes 10000

Every sub-agent waits until all sub-agents of all episodes have begun, so all live at the same time. `episodes_per_s` is over
the whole of it, `kib_per_episode` the resident memory that came with the episodes, which are kept to the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import time
from dataclasses import dataclass, field

from trivium import Episode, Harness, Limits, Passage, Task, Window, tool
from trivium.assets import NANO
from trivium.harness import Crew, Subagent
from trivium.policy import Renderer, Reply, Scripted, View
from trivium.policy.scripted import call, say
from trivium.trace import critical_steps

MEMBERS = 4
"""Sub-agents of an episode."""


@dataclass(slots=True)
class Doorkeeper:
    """Lets everybody go on once `expected` have come."""

    expected: int
    come: int = 0
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def enter(self) -> None:
        self.come += 1
        if self.come == self.expected:
            self.opened.set()
        await self.opened.wait()


class Finder(Scripted):
    """A sub-agent: waits for all others, searches once, and says what it was asked."""

    door: Doorkeeper

    async def speak(self, view: View, sampling) -> Reply:
        if view.messages[-1]["role"] != "tool":
            await self.door.enter()
        return await super().speak(view, sampling)


def find(view: View):
    if view.messages[-1]["role"] == "tool":
        return say(str(view.messages[-3]["content"]))
    return call(("look_up", {"query": "x"}))


def lead(view: View):
    """The orchestrator: an agent created, four assignments, and an answer made of what came back."""
    results = [str(message["content"]).split("\n")[0] for message in view.messages if message["role"] == "tool"]
    if results:
        return say(" ".join(results[1:]))
    asked = [("assign_task", {"agent": "finder", "prompt": f"{view.stream[1]}-{n}"}) for n in range(MEMBERS)]
    return call(("create_subagent", {"name": "finder", "system_prompt": "Find."}), *asked)


@tool
def look_up(scene, query: str) -> list[Passage]:
    """Two passages."""
    return [Passage(f"doc-{n}", "The chief executive of Brennix Holt is Mira Tolen.") for n in range(2)]


def harness_of(renderer: Renderer, count: int) -> tuple[Harness, Doorkeeper]:
    finder = Finder(find, renderer, "helper")
    finder.door = Doorkeeper(count * MEMBERS)
    member = Subagent(finder, Harness([look_up], Window(512), "Help.", specs=False), seconds=3600)
    crew = Crew(member, at_once=count * MEMBERS)
    return Harness(crew.tools, Window(1024), "Lead.", Limits(calls=MEMBERS + 1), specs=False, place=crew), finder.door


async def live(renderer: Renderer, count: int) -> list[Episode]:
    harness, _ = harness_of(renderer, count)
    policy = Scripted(lead, renderer, "agent")
    return list(await asyncio.gather(*(harness.run(Task(f"t{n}", f"Do {n}."), policy) for n in range(count))))


def lost(episodes: list[Episode]) -> int:
    """Episodes that are not whole: another end, a thread too few, an answer without one of its parts."""
    return sum(not _whole(episode, f"t{n}") for n, episode in enumerate(episodes))


def _whole(episode: Episode, name: str) -> bool:
    answers = " ".join(f"{name}-{n}" for n in range(MEMBERS))
    ends = {thread.stop.reason for thread in episode.threads if thread.stop}
    return (episode.agent.answer, len(episode.threads), ends, critical_steps(episode)) == (
        answers,
        MEMBERS + 1,
        {"finished"},
        4,
    )


def resident() -> int:
    """KiB of memory that this process holds now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def measure(count: int) -> dict[str, object]:
    renderer = Renderer.load(str(NANO))
    asyncio.run(live(renderer, 2))  # what is made once
    before, began = resident(), time.perf_counter()
    episodes = asyncio.run(live(renderer, count))
    seconds = time.perf_counter() - began
    return {
        "episodes": count,
        "sub_agents": count * MEMBERS,
        "lost": lost(episodes),
        "seconds": round(seconds, 2),
        "episodes_per_s": round(count / seconds, 1),
        "kib_per_episode": round((resident() - before) / count, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--json", help="write the numbers here")
    args = parser.parse_args()
    numbers = measure(args.episodes)
    print(json.dumps(numbers))
    if args.json:
        command = f"python benchmarks/concurrency.py --episodes {args.episodes}"
        beside = {
            "command": command,
            "load_average": os.getloadavg(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        }
        with open(args.json, "w") as file:
            json.dump({**beside, **numbers}, file)


if __name__ == "__main__":
    main()
