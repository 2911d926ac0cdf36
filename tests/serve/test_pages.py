"""The page of the served store: a key is needed where there are any, and shows what is its own."""

from __future__ import annotations

import httpx
import pytest

from tests.serve.house import options, serving
from trivium.harness import Harness, Window
from trivium.policy import Scripted
from trivium.policy.scripted import say
from trivium.recipe.base import Recipe
from trivium.recipe.show import Book
from trivium.recipe.view import book_app
from trivium.serve import keys
from trivium.serve.service import Service
from trivium.trace import Store


def service_at(renderer, folder, **changes) -> Service:
    given = options(folder, **changes)

    def page_of(account: str):
        return book_app(Book("agent", Store(given.store, readonly=True, account=account), None, Recipe, renderer))

    policy = Scripted(lambda view: say(f"heard {view.messages[-1]['content']}"), renderer)
    return Service({"agent": policy}, given, Harness([], Window(2048)), page_of=page_of)


def ask(http: httpx.Client, text: str, **more) -> str:
    """The id of an episode that has ended."""
    id = http.post("/v1/episodes", json={"input": text, **more}).json()["id"]
    assert '"answer"' in http.get(f"/v1/episodes/{id}/events").text
    return id


@pytest.fixture
def tokens(tmp_path):
    return {name: keys.add(tmp_path / "keys.json", name, consent=True, per_minute=0, concurrent=0) for name in ("ann", "annie")}


def test_each_key_sees_its_own_episodes_and_those_of_its_users(renderer, tmp_path, tokens):
    service = service_at(renderer, tmp_path, keys=str(tmp_path / "keys.json"))
    with serving(service) as url:
        ann, annie = (
            httpx.Client(base_url=url, auth=("any", token), headers={"x-api-key": token}, timeout=60, follow_redirects=True)
            for token in tokens.values()
        )
        bare = httpx.Client(base_url=url, timeout=60)
        for http, text in ((ann, "a mill"), (annie, "an ox")):
            http.auth = None
            ask(http, text)
        id = ask(ann, "a user's", user="u1")
        ann.auth, annie.auth = (("any", token) for token in tokens.values())
        for http in (ann, annie):
            del http.headers["x-api-key"]
        assert bare.get("/view/").status_code == 401 and "Basic" in bare.get("/view/").headers["www-authenticate"]
        mine, other = ann.get("/view").text, annie.get("/view").text
        assert "2 of 2 episodes" in mine and "a mill" in mine and "an ox" not in mine
        assert "1 of 1 episodes" in other and "an ox" in other and "a mill" not in other
        assert "heard" in ann.get("/view/agent/episode", params={"id": f"served/{id}"}).text
        assert annie.get("/view/agent/episode", params={"id": f"served/{id}"}).status_code == 404
        assert ann.get("/v1/models").status_code == 401, "what a browser sends by itself opens the page alone"


def test_what_was_deleted_is_on_no_page(renderer, tmp_path):
    with serving(service_at(renderer, tmp_path)) as url, httpx.Client(base_url=url, timeout=60, follow_redirects=True) as http:
        ask(http, "the secret is 1234", user="ann")
        ask(http, "hello", user="bob")
        assert "2 of 2 episodes" in http.get("/view").text
        assert http.delete("/v1/data", params={"user": "ann"}).json()["deleted"]["episodes"] == 1
        page = http.get("/view").text
        assert "1 of 1 episodes" in page and "1234" not in page


def test_without_keys_a_page_of_another_host_is_refused(renderer, tmp_path):
    with serving(service_at(renderer, tmp_path)) as url:
        assert httpx.get(f"{url}/view/", headers={"Host": "evil.test"}).status_code == 403
        assert httpx.get(f"{url}/view/", headers={"Host": "localhost"}, follow_redirects=True).status_code == 200
