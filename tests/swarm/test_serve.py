"""The swarm served on a person's documents: orchestrator and sub-agents search the same, and what is cited is told."""

from __future__ import annotations

import asyncio

from trivium.agents.swarm.recipe import Swarm
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Task

SCRIPT = [
    call(
        ("search_corpus", {"query": "Who runs the mill?"}),
        ("create_subagent", {"name": "finder", "system_prompt": "Find the documents."}),
        ("assign_task", {"agent": "finder", "prompt": "Who runs the mill?"}),
    ),
    say("Ann #1"),
]


def test_it_works_on_documents_that_are_named(tmp_path):
    (tmp_path / "mill.md").write_text("# The mill\n\nAnn runs the mill by the river.\n")
    swarm = Swarm(out=str(tmp_path / "run"), critical=16)
    harness = swarm.harness_at(str(tmp_path), lambda done, total: None)
    episode = asyncio.run(harness.run(Task("served", "Who runs the mill?"), Scripted(SCRIPT, swarm.renderer, "agent")))
    assert [thread.policy for thread in episode.threads] == ["agent", "helper"] and episode.agent.answer == "Ann #1"
    assert "Ann runs the mill" in asyncio.run(swarm.outcome(episode, harness))


def test_without_documents_its_model_alone_is_served():
    assert Swarm(out="unused").harness_at("", lambda done, total: None) is None
