"""Wide, deep, long, batch and simple tasks: proven, of one form, and judged by one measure."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from trivium.errors import InputError
from trivium.harness import Crew, Harness, Limits, Subagent, Window
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.reward import score, table_score
from trivium.tasks.batch import batch_task, download_tool
from trivium.tasks.countries import country_documents, country_tasks
from trivium.tasks.deep import deep_tasks
from trivium.tasks.long import CELLS, long_tasks, parts_tool
from trivium.tasks.proof import mentions
from trivium.tasks.tables import SIMPLE, WIDE, table_tasks
from trivium.tasks.world import World
from trivium.trace import Episode, Task

WORLD = World.make(7, 300)
DOCUMENTS = {document.id: f"{document.title}: {document.text}" for document in WORLD.documents}


def right(task: Task) -> str:
    return "\n".join(f"{number} | {task.truth['rows'][key][at]}" for number, (key, at) in task.truth["cells"].items())


def lived(task: Task, harness: Harness, script) -> tuple[Episode, dict[str, float]]:
    episode = asyncio.run(harness.run(task, script))
    return episode, asyncio.run(score([episode], table_score))[0]


MAKERS = {
    "wide": lambda n: table_tasks(WORLD, "wide", n, WIDE),
    "simple": lambda n: table_tasks(WORLD, "simple", n, SIMPLE),
    "deep": lambda n: deep_tasks(WORLD, n),
    "long": lambda n: long_tasks(WORLD, n),
    "countries": lambda n: country_tasks("wide", n, ((4, 3), (6, 2))),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_tasks_differ_repeat_say_nothing_of_how_and_their_right_answer_is_right(kind, renderer):
    tasks = MAKERS[kind](12)
    assert tasks == MAKERS[kind](12) and len({task.id for task in tasks}) == len({task.prompt for task in tasks}) == 12
    for task in tasks:
        assert not {"parallel", "parallelize", "split", "agent", "agents", "delegate", "assign"} & set(
            task.prompt.lower().split()
        )
    _, scores = lived(tasks[0], Harness([], Window(3000), specs=False), Scripted([say(right(tasks[0]))], renderer))
    assert scores == {"reward": 1, "item_f1": 1, "row_f1": 1, "success": 1}


@pytest.mark.parametrize("kind", ["wide", "simple", "deep"])
def test_each_fact_stands_in_its_document(kind):
    for task in MAKERS[kind](12):
        for link in task.truth["links"]:
            assert mentions(DOCUMENTS[link["doc"]], link["subject"]) and mentions(DOCUMENTS[link["doc"]], link["object"])


def test_the_branches_of_a_deep_task_meet_in_one_answer_that_none_gives_alone():
    for task in deep_tasks(WORLD, 12):
        which, when = task.truth["links"][::2], task.truth["links"][1::2]
        assert [link["object"] for link in which] == [link["subject"] for link in when]
        oldest = min(when, key=lambda link: int(link["object"]))["subject"]
        assert task.truth["rows"] == {"first": [oldest]} and not mentions(task.prompt, oldest)


def test_a_long_document_fits_no_window_and_its_cells_stand_in_different_parts(renderer):
    (task,) = long_tasks(WORLD, 1)
    parts = task.truth["parts"]
    assert sum(len(renderer.encode(part)) for part in parts) > 4096
    assert len({link["doc"] for link in task.truth["links"]}) == CELLS
    for link in task.truth["links"]:
        assert mentions(parts[int(link["doc"].removeprefix("part-")) - 1], link["object"])
    with pytest.raises(InputError, match="to as many parts, not 3"):
        long_tasks(WORLD, 1, parts=3)


def member(renderer, tools, find) -> Crew:
    return Crew(Subagent(Scripted(find, renderer, "helper"), Harness(tools, Window(2048), "Help.", specs=False)))


def split_over(prompts: list[str], answer) -> list:
    """A script that assigns each prompt, and answers with what came back."""

    def script(view):
        results = [str(message["content"]).split("\n")[0] for message in view.messages if message["role"] == "tool"]
        assigned = [("assign_task", {"agent": "a", "prompt": prompt}) for prompt in prompts]
        create = ("create_subagent", {"name": "a", "system_prompt": "Help."})
        return say(answer(results[1:])) if results else call(create, *assigned)

    return script


def test_a_long_document_is_read_by_a_team_within_steps_in_which_nobody_reads_it_alone(renderer):
    (task,) = long_tasks(WORLD, 1)
    count, facts = len(task.truth["parts"]), [(n, link["object"]) for n, link in enumerate(task.truth["links"], 1)]

    def read(view):
        if view.messages[-1]["role"] != "tool":
            return call(("read_part", {"number": int(view.messages[-1]["content"])}))
        text = str(view.messages[-1]["content"])
        return say("; ".join(f"{n} | {fact}" for n, fact in facts if mentions(text, fact)) or "nothing")

    crew = member(renderer, [parts_tool()], read)
    limits = Limits(calls=count + 1, critical=6)
    harness = Harness([parts_tool(), *crew.tools], Window(4096), "Lead.", limits, specs=False, place=crew)
    team = split_over([str(n + 1) for n in range(count)], lambda said: "\n".join(said).replace("; ", "\n"))
    assert lived(task, harness, Scripted(team, renderer))[1]["item_f1"] == 1
    alone, scores = lived(task, harness, Scripted([call(("read_part", {"number": n + 1})) for n in range(6)], renderer))
    assert (alone.agent.stop.reason, scores["reward"]) == ("window", 0)
    beyond, _ = lived(task, harness, Scripted([call(("read_part", {"number": 99})), say("")], renderer))
    assert "there is no part 99; there are 12" in beyond.agent.calls[0].error


@pytest.fixture
def site(tmp_path):
    """A site on a free port, with twenty files."""
    files = {f"report-{n}.txt": f"report {n}\n".encode() * (n + 1) for n in range(20)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", files
    server.shutdown()
    server.server_close()


def test_many_files_are_fetched_side_by_side_from_a_site_and_from_no_other(renderer, site):
    address, files = site
    task, tool = batch_task("batch", address, files), download_tool(address)

    def fetch(view):
        if view.messages[-1]["role"] != "tool":
            return call(("download", {"address": view.messages[-1]["content"]}))
        return say(str(view.messages[-1]["content"]).split("\n")[0].rpartition(" ")[2])

    crew = member(renderer, [tool], fetch)
    harness = Harness([tool, *crew.tools], Window(8000), "Lead.", Limits(calls=30, critical=5), specs=False, place=crew)
    places = [link["subject"] for link in task.truth["links"]]
    team = split_over(places, lambda said: "\n".join(f"{n} | {each}" for n, each in enumerate(said, 1)))
    episode, scores = lived(task, harness, Scripted(team, renderer))
    assert scores["success"] == 1 and len(episode.threads) == 21
    assert task.truth["rows"][places[3]] == [hashlib.sha256(files["report-3.txt"]).hexdigest()[:8]]
    wrong = call(("download", {"address": "http://localhost/x"}), ("download", {"address": f"{address}missing"}))
    outside, missing = lived(task, harness, Scripted([wrong, say("")], renderer))[0].agent.calls
    assert (outside.fault, missing.fault) == ("arguments", "environment")
    assert "is not of the site" in outside.error and "cannot be downloaded: HTTP Error 404" in missing.error


def test_real_facts_stand_in_their_documents():
    documents = {document.id: document for document in country_documents()}
    assert len(documents) > 900
    for task in country_tasks("wide", 8, ((5, 2),)):
        for link in task.truth["links"]:
            document = documents[link["doc"]]
            assert document.title == link["subject"] and mentions(document.text, link["object"])
        assert set(task.truth["match"]) <= {"exact", "number"}
    with pytest.raises(InputError, match="not \\(2, 9\\)"):
        country_tasks("wide", 1, ((2, 9),))
