"""`trivium serve RUN --data DOCS`: the search agent of a run on somebody's documents, over HTTP."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.serve.house import options, serving
from trivium.agents.search.citation import quoted
from trivium.agents.search.recipe import Search
from trivium.assets import NANO
from trivium.errors import InputError
from trivium.loops.run import write_json
from trivium.recipe.serving import service_of


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    """A run as training leaves it, with the weights of the base."""
    folder = tmp_path_factory.mktemp("run")
    write_json(folder / "recipe.json", Search(out=str(folder)).fields())
    write_json(folder / "summary.json", {})
    (folder / "model").symlink_to(NANO)
    return str(folder)


def test_the_agent_searches_the_documents_that_it_is_given(run, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "keys.md").write_text("# Keys\n\nA key is renewed every ninety days.\n")
    service = service_of(run, options(tmp_path), str(tmp_path / "docs"), 4, 0, lambda done, total: None)
    with serving(service) as url, httpx.Client(base_url=url, timeout=120) as http:
        id = http.post("/v1/episodes", json={"input": "When is a key renewed?"}).json()["id"]
        lines = http.get(f"/v1/episodes/{id}/events").text.splitlines()
        told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        assert told[0]["type"] == "turn" and told[-1]["type"] == "answer"
        body = {"model": "agent", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
    (episode,) = service.store.select("served/")
    assert episode.id == f"served/{id}" and episode.agent.policy == "agent"
    assert told[-1]["outcome"] == episode.outcome == quoted(episode.agent, episode.task)


def test_without_documents_its_model_alone_is_served(run, tmp_path):
    service = service_of(run, options(tmp_path), "", 4, 0, lambda done, total: None)
    with serving(service) as url:
        assert httpx.post(f"{url}/v1/episodes", json={"input": "hi"}).status_code == 404


def test_documents_that_are_not_there_are_named(run, tmp_path):
    with pytest.raises(InputError, match="no-such-folder"):
        service_of(run, options(tmp_path), str(tmp_path / "no-such-folder"), 4, 0, lambda done, total: None)


def test_slots_that_memory_does_not_hold_are_refused_before_anything_is_served(run, tmp_path):
    with pytest.raises(InputError, match="--slots 1000000000 of 640 tokens do not fit into memory"):
        service_of(run, options(tmp_path), "", 10**9, 0, lambda done, total: None)
