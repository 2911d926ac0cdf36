"""Your own tool in a harness, walked by a script: no model is needed to see what a policy would see.

python examples/tool.py
"""

import asyncio

from trivium import Harness, Passage, Renderer, Scripted, Task, Window, prune_chunks, tool
from trivium.assets import NANO
from trivium.policy.scripted import call, say

NOTES = {
    "monday": "Monday: the oven broke, bread came late.",
    "tuesday": "Tuesday: a new oven was ordered from Ferro.",
    "friday": "Friday: Ferro delivered the oven.",
}


@tool
def look_up(scene, word: str) -> list[Passage]:
    """Find notes that contain a word."""
    return [Passage(day, text) for day, text in NOTES.items() if word.strip() in text and day not in scene.seen]


async def main() -> None:
    renderer = Renderer.load(NANO)
    harness = Harness([look_up, prune_chunks], Window(budget=600), prompt="Find the notes that answer the question.")
    # a call's words begin with a space, as they do in running text: so the nano model's tokens for a copied name are the same
    script = [call(("look_up", {"word": " oven"})), call(("prune_chunks", {"keep": [" #3"]})), say("#3")]
    episode = await harness.run(Task("when", "When did the oven come?"), Scripted(script, renderer))
    for number, segment in enumerate(episode.agent.segments):
        print(f"--- segment {number}: {len(segment.tokens)} tokens, {segment.carried} of them carried over")
        print(renderer.decode(segment.tokens))
    print("ops:", episode.ops)


if __name__ == "__main__":
    asyncio.run(main())
