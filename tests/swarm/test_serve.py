"""The swarm served on a person's documents: orchestrator and sub-agents search the same, and what is cited is told."""

from __future__ import annotations

import asyncio

import pytest

from tests.serve.house import options
from trivium.agents.swarm.recipe import Swarm
from trivium.errors import InputError
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.serve.service import Service
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


def test_what_is_redacted_is_redacted_of_sub_agents_too(tmp_path):
    """Their tokens are read by their own policy's renderer."""
    (tmp_path / "mill.md").write_text("# The mill\n\nAnn runs the mill by the river.\n")
    (tmp_path / "rules").write_text("Ann|mill\n")
    swarm = Swarm(out=str(tmp_path / "run"), critical=16)
    harness, agent = swarm.harness_at(str(tmp_path), lambda done, total: None), Scripted(SCRIPT, swarm.renderer, "agent")
    service = Service({"agent": agent}, options(tmp_path, redact=str(tmp_path / "rules")), harness)
    service.keeper.keep(asyncio.run(harness.run(Task("served", "Who runs the mill?"), agent)))
    (kept,) = service.store.select("")
    told = [swarm.renderer.decode(segment.tokens) for thread in kept.threads for segment in thread.segments]
    assert [thread.policy for thread in kept.threads] == ["agent", "helper"] and not any("mill" in text for text in told)
    kept.agent.policy = "stranger"
    with pytest.raises(InputError, match="nobody here reads the tokens of 'stranger'"):
        service.keeper.keep(kept)


def test_without_documents_its_model_alone_is_served():
    assert Swarm(out="unused").harness_at("", lambda done, total: None) is None
