"""The coder served on a person's folder: each episode works on a copy, and its diff is told beside its answer."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tests.serve.house import options, serving
from trivium.agents.coder.recipe import Coder
from trivium.errors import InputError
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.serve.service import Service

EDIT = ("edit_file", {"path": "cart.py", "old": "return 2", "new": "return 3"})


@pytest.fixture
def coder(tmp_path):
    return Coder(out=str(tmp_path / "run"), sandbox="local-unsafe")


def told(http: httpx.Client, text: str) -> dict:
    """The last event of an episode."""
    id = http.post("/v1/episodes", json={"input": text}).json()["id"]
    lines = http.get(f"/v1/episodes/{id}/events").text.splitlines()
    return json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))


def test_an_episode_ends_in_a_diff_to_the_folder_and_changes_nothing_there(coder, renderer, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "cart.py").write_text("def tax():\n    return 2\n")
    harness = coder.harness_at(str(project), lambda done, total: None)
    policy = Scripted(lambda view: say("done") if view.messages[-1]["role"] == "tool" else call(EDIT), renderer)
    service = Service({"agent": policy}, options(tmp_path), harness, lambda episode: coder.outcome(episode, harness))
    with serving(service) as url, httpx.Client(base_url=url, timeout=60) as http:
        answers = [told(http, "Make the tax 3.") for _ in range(2)]
    for answer in answers:  # each from the folder as it was copied
        assert answer["text"] == "done" and answer["outcome"].splitlines()[-2:] == ["-    return 2", "+    return 3"]
    assert (project / "cart.py").read_text() == "def tax():\n    return 2\n"
    first, _ = service.store.select("served/")
    assert first.outcome == answers[0]["outcome"]
    with pytest.raises(InputError):  # nothing is kept of an episode whose diff was told
        asyncio.run(harness.place.provider.create(first.snapshots[-1]))


def test_without_a_folder_its_model_alone_is_served(coder):
    assert coder.harness_at("", lambda done, total: None) is None


def test_a_folder_that_is_none_is_named(coder, tmp_path):
    with pytest.raises(InputError, match="no-such-folder is no folder"):
        coder.harness_at(str(tmp_path / "no-such-folder"), lambda done, total: None)
