"""`trivium view`: the pages of a run, as a browser gets them."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.recipe.test_show import episode, fill, scores, task
from tests.serve.house import options, serving
from trivium.loops.run import Event, Run
from trivium.policy import Scripted
from trivium.recipe.base import Recipe
from trivium.recipe.show import Book
from trivium.recipe.view import book_app, page_app
from trivium.serve import keys
from trivium.serve.service import Service
from trivium.trace import Store

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def in_thread(function, *values):
    """What a function returns in a thread of its own: playwright keeps an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *values).result()


@pytest.fixture
def run(tmp_path, renderer):
    folder = tmp_path / "demo"
    folder.mkdir()
    in_thread(fill, folder, renderer)
    for step, reward in enumerate((0.1, 0.4, 0.6), 1):
        Run(folder).log(Event("rl", step, {"reward": reward, "entropy": 1 - reward}))
    return folder


@pytest.fixture
def client(run):
    from starlette.testclient import TestClient

    return TestClient(page_app(str(run)))


def test_the_front_page_has_curves_and_episodes_and_leads_to_one(client):
    page = client.get("/")
    assert page.status_code == 200 and page.url.path == "/demo/"
    assert page.text.count("<svg") >= 2 and "6 of 6 episodes" in page.text
    link = page.text.split('href="episode?')[1].split('"')[0].replace("&amp;", "&")
    one = client.get(f"/demo/episode?{link}")
    assert one.status_code == 200 and "What of a?" in one.text and "side by side" in one.text


def test_search_conditions_and_order_choose_the_episodes(client):
    def found(**words):
        page = client.get("/demo/", params=words).text
        return [
            part.split("<")[0] for part in page.split('">')[1:] if part.startswith("eval/") and "/" in part[5:].split("<")[0]
        ]

    assert [id for id in found(where="reward>0.5", order="reward") if id.count("/") == 3] == ["eval/rl/b/0", "eval/rl/d/0"]
    assert [id for id in found(text="what of c") if id.count("/") == 3] == ["eval/rl/c/0"]
    assert "no episode has a f7" in client.get("/demo/", params={"where": "f7>1"}).text
    assert "is no condition" in client.get("/demo/", params={"where": "low"}).text


def test_one_task_by_several_policies_stands_side_by_side(client):
    page = client.get("/demo/beside", params={"task": "b"})
    assert page.text.count("<article") == 3 and ">SFT</h2>" in page.text


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/demo/episode?id=none", "has no episode"),
        ("/demo/episode", "has no episode"),
        ("/demo/beside?task=zz", "no held-out episode of the task"),
        ("/other/", "holds no run"),
        ("/../etc/", ""),
    ],
)
def test_what_is_not_there_is_a_page_that_says_so(client, path, why):
    page = client.get(path)
    assert page.status_code == 404 and why in page.text and "Traceback" not in page.text


def test_a_page_of_another_host_is_refused_and_nothing_may_be_asked_elsewhere(client):
    assert client.get("/", headers={"host": "evil.test"}).status_code == 400
    assert "default-src 'none'" in client.get("/").headers["content-security-policy"]


def test_a_folder_of_runs_lists_them_and_a_store_is_read_alone(run, tmp_path):
    from starlette.testclient import TestClient

    assert 'href="demo/"' in TestClient(page_app(str(tmp_path))).get("/").text
    store = TestClient(page_app(str(run / "episodes.db"))).get("/")
    assert store.status_code == 200 and "eval/rl/a/0" in store.text and "<svg" not in store.text


def test_a_folder_of_runs_says_how_far_each_is_and_what_is_wrong_with_one(run, tmp_path):
    from starlette.testclient import TestClient

    torn = shutil.copytree(run, tmp_path / "torn") / "metrics.jsonl"
    torn.write_text("{torn\n" + torn.read_text())
    page = TestClient(page_app(str(tmp_path))).get("/")
    assert page.status_code == 200 and 'href="demo/"' in page.text and 'href="torn/"' in page.text
    assert "RL step 3" in page.text and "torn/metrics.jsonl, line 1 is no event" in page.text


@pytest.mark.parametrize("name", ["lr#2", "who?", "50%", "a b", "问题"])
def test_a_run_of_any_name_is_opened(run, tmp_path, name):
    from starlette.testclient import TestClient

    shutil.copytree(run, tmp_path / name)
    alone = TestClient(page_app(str(tmp_path / name))).get("/")
    assert alone.status_code == 200 and "6 of 6 episodes" in alone.text
    among = TestClient(page_app(str(tmp_path)))
    address = next(part for part in among.get("/").text.split('href="')[1:] if f">{name}<" in part).split('"')[0]
    assert "6 of 6 episodes" in among.get(f"/{address}").text


def test_an_episode_of_any_id_is_saved_and_a_number_without_end_is_none(tmp_path, renderer):
    from starlette.testclient import TestClient

    store = Store(tmp_path / "one.db")
    store.write([episode(renderer, "问题1", task("a"))])
    store.close()
    client = TestClient(page_app(str(tmp_path / "one.db")))
    saved = client.get("/one.db/episode", params={"id": "问题1", "file": "1"})
    assert saved.headers["content-disposition"] == 'attachment; filename="--1.html"' and "问题1" in saved.text
    assert client.get("/one.db/", params={"first": "9" * 5000}).status_code == 200


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere"], "is no run, no store and no folder of runs"),
        (["demo", "--episode", "x"], "name it with --out"),
        (["demo", "--out", "x.html"], "name what it shows with --episode or with --task"),
        (["demo", "--out", "no/x.html", "--task", "b"], "its folder does not exist"),
        (["demo", "--port", "99999"], "port 99999 cannot be had"),
    ],
)
def test_a_mistake_is_one_line(run, trivium, monkeypatch, words, why):
    monkeypatch.chdir(run.parent)
    code, _, err = trivium("view", *words)
    assert code == 2 and why in err and err.count("\n") == 1, err


def test_a_page_goes_to_a_file_that_stands_alone(run, trivium, tmp_path):
    code, out, err = trivium("view", run, "--episode", "eval/rl/a/0", "--out", tmp_path / "a.html")
    assert code == 0 and "stands alone" in out, err
    text = (tmp_path / "a.html").read_text()
    assert "What of a?" in text and "http" not in text.replace("http-equiv", "")


# --- in a real browser -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(app):
    """An application on a port of its own."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline and thread.is_alive()
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("no chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def page(browser):
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.problems, page.asked = [], []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda message: page.problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    page.close()


def test_a_browser_walks_from_the_list_to_an_episode_by_keys(run, page):
    with served(page_app(str(run))) as address:
        page.goto(address)
        page.keyboard.press("/")
        page.keyboard.type("what of b")
        page.keyboard.press("Enter")
        page.wait_for_url("**text=what+of+b**")
        assert page.locator("#count").inner_text() == "3 of 6 episodes"
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/episode?**")
        first = page.locator("article").get_attribute("data-id")
        page.keyboard.press("n")
        page.wait_for_function("first => document.querySelector('article')?.dataset.id !== first", arg=first)
        assert page.locator("article").get_attribute("data-id").split("/")[2] == "b", "n stays within what was searched"
        page.keyboard.press("u")
        page.wait_for_url("**text=what+of+b**")
        assert not page.problems and all(url.startswith((address, "data:")) for url in page.asked), page.problems


def test_colours_theme_and_keys_work_in_a_file_without_a_server(run, page, trivium, tmp_path):
    assert trivium("view", run, "--episode", "eval/rl/a/0", "--out", tmp_path / "a.html")[0] == 0
    page.emulate_media(color_scheme="light")
    page.goto(f"file://{tmp_path}/a.html")
    ground = partial(page.evaluate, "getComputedStyle(document.body).backgroundColor")
    light = ground()
    page.keyboard.press("t")
    assert ground() != light and page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("v")
    assert page.evaluate("document.body.dataset.colour") == "version"
    assert not page.problems and all(url.startswith(("file:", "data:")) for url in page.asked), page.problems


def test_the_curves_of_a_run_that_trains_grow_on_the_page(run, page, renderer):
    with served(page_app(str(run))) as address:
        page.goto(address)
        before = page.locator("figure", has_text="training reward").locator("polyline.line").get_attribute("points")
        Run(run).log(Event("rl", 4, {"reward": 0.9}))
        page.wait_for_function(
            "before => [...document.querySelectorAll('figure')].find(f => f.textContent.includes('training reward'))"
            ".querySelector('.line').getAttribute('points') !== before",
            arg=before,
        )
        store = Store(run / "episodes.db")
        store.write([in_thread(episode, renderer, "eval/rl/a/7", task("a"))], scores("eval/rl/a/7", 0.1))
        store.close()
        page.reload()
        assert page.locator("#count").inner_text() == "7 of 7 episodes"


def test_a_browser_opens_the_page_of_a_server_with_its_key(browser, renderer, tmp_path):
    token = keys.add(tmp_path / "keys.json", "ann", consent=True, per_minute=0, concurrent=0)
    given = options(tmp_path, keys=str(tmp_path / "keys.json"))
    pages = partial(served_pages, given.store, renderer)
    service = in_thread(partial(Service, {"agent": Scripted([], renderer)}, given, page_of=pages))
    mine, other = in_thread(episode, renderer, "served/1", task("a")), in_thread(episode, renderer, "served/2", task("b"))
    mine.account, other.account = "ann/u1", "bob"
    service.store.write([mine, other])
    with serving(service) as address:
        page = browser.new_context(http_credentials={"username": "any", "password": token}).new_page()
        page.goto(f"{address}/view/")
        assert page.locator("#count").inner_text() == "1 of 1 episodes"
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/view/agent/episode?**")
        assert page.locator("article").get_attribute("data-id") == "served/1" and page.locator(".block.sampled .t").count()


def served_pages(store: str, renderer, account: str):
    return book_app(Book("agent", Store(store, readonly=True, account=account), None, Recipe, renderer))
