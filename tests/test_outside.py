"""Any model in an agent's harness: `ask` and `eval` with --policy URL#MODEL against a real server, or with --model FOLDER."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.openai_server import calls, says
from trivium import cli
from trivium.agents.search.harness import LARGE
from trivium.agents.search.recipe import Search
from trivium.errors import InputError
from trivium.policy import endpoint
from trivium.recipe.outside import Outside

pytest.importorskip("openai")
QUESTION = "Who leads Brennix Holt?"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(endpoint, "WAIT", 0.001)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def notes(tmp_path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "holt.md").write_text("# Brennix Holt\nBrennix Holt is led by Mira Tolen. The firm makes pumps.\n")
    (folder / "oster.txt").write_text("Varnholm lies in the Oster valley.\n")
    return folder


@pytest.fixture
def trivium(monkeypatch, capsys):
    """The command in this process: its status, and what it printed."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["trivium", *map(str, words)])
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return run


def searcher(body: dict):
    """A model that searches once, then returns the first passage that it was shown."""
    if body["messages"][-1]["role"] == "tool":
        return says("#1")
    words = body["messages"][-1]["content"]
    return calls(("search_corpus", json.dumps({"query": words})))


def test_any_server_answers_from_a_folder_and_says_what_it_used(serve, trivium, notes, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server = serve(searcher)
    status, out, _ = trivium(
        "ask", "--policy", f"{server.url}#m", QUESTION, "--corpus", notes, "--price", 2, 10, "--max-cost", 1
    )
    assert status == 0 and "→ search_corpus Who leads Brennix Holt?" in out and "“Brennix Holt" in out
    assert "tokens: 300 of at most 1,000,000 (30 in replies), cost: 0.00084 of at most 1" in out, "a greeting and two turns"
    greeting, first, second = server.asked
    assert {tool["function"]["name"] for tool in greeting["tools"]} == {tool["function"]["name"] for tool in first["tools"]}
    assert {tool["function"]["name"] for tool in first["tools"]} == {
        "search_corpus", "grep_corpus", "read_document", "prune_chunks",
    }  # fmt: skip
    assert first["messages"][0]["content"].startswith("You are a search agent.") and first["temperature"] == 0
    assert f"/{LARGE:,}]" in second["messages"][-1]["content"] and server.keys[0] == "Bearer secret"


def test_several_attempts_are_fused_and_sampled(serve, trivium, notes):
    server = serve(searcher)
    status, out, _ = trivium("ask", "--policy", f"{server.url}#m", QUESTION, "--corpus", notes, "--rollouts", 2)
    assert status == 0 and "2 → search_corpus" in out and server.asked[1]["temperature"] == 1
    assert "tokens: 500 of" in out and "cost" not in out


def test_the_search_suite_on_any_server(serve, trivium):
    server = serve(searcher)
    status, out, err = trivium("eval", "search", "--policy", f"{server.url}#m", "--tasks", 12, "--greedy")
    assert status == 0, err
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert out.startswith("12 questions\n") and float(lines["searches"][1]) == 1 and float(lines["finished"][1]) == 1
    assert 0 < float(lines["output_recall"][1]) < 1
    assert "tokens: 2,500 of at most 1,000,000" in out and len(server.asked) == 25


def test_what_a_cap_cut_off_is_left_out_and_counted(serve, trivium):
    server = serve(searcher)
    status, out, _ = trivium("eval", "search", "--policy", f"{server.url}#m", "--tasks", 12, "--max-tokens", 2000)
    assert status == 0 and "of 12 questions are left out" in out and "the spending cap of 2,000 tokens is reached" in out
    left = int(out.split(" of 12 questions")[0])
    assert 0 < left < 12 and f"\n{12 - left} questions\n" in out
    assert int(out.split("tokens: ")[1].split(" of at most")[0].replace(",", "")) <= 2000


def test_a_cost_has_a_cap_too(serve, trivium):
    server = serve(searcher)
    words = ("--tasks", 12, "--price", 1000, 1000, "--max-cost", 2)
    status, out, _ = trivium("eval", "search", "--policy", f"{server.url}#m", *words)
    assert status == 0 and "the spending cap of 2 is reached" in out
    assert float(out.split("cost: ")[1].split(" of at most 2")[0]) <= 2


def test_a_cap_below_one_question_is_one_error(serve, trivium):
    server = serve(searcher)
    status, out, err = trivium("eval", "search", "--policy", f"{server.url}#m", "--tasks", 2, "--max-tokens", 1200)
    assert status == 2 and not out and err.strip().splitlines()[-1].startswith("trivium: ") and "1,200 tokens" in err


def test_a_model_in_a_folder_lives_in_the_same_harness(trivium, tiny_model, notes):
    status, out, err = trivium("eval", "search", "--model", tiny_model, "--tasks", 1, "--window", 4096)
    assert status == 0, err
    assert out.startswith("1 questions\n") and "read, " in out and "sampled" in out
    status, out, _ = trivium("ask", "--model", tiny_model, QUESTION, "--corpus", notes, "--window", 4096)
    assert status == 0 and "plain search finds" in out and "cost" not in out


# --- what is wrong, is said before anything is measured


def last(text: str) -> str:
    """The error, one line behind what progress said."""
    return text.strip().splitlines()[-1]


def test_a_server_that_refuses_tools_is_one_error(serve, trivium, notes):
    server = serve(lambda body: 400 if "tools" in body else says("Hello."))
    for words in (("ask", QUESTION, "--corpus", notes), ("eval", "search")):
        status, out, err = trivium(*words, "--policy", f"{server.url}#m")
        assert status == 2 and not out and "m at http://127.0.0.1" in err and "speaks, but refuses tools" in last(err)
        assert "--enable-auto-tool-choice" in last(err)


def test_a_server_that_ignores_tools_is_one_error(serve, trivium, notes):
    server = serve(lambda body: says('<tool_call>{"name": "search_corpus"}</tool_call>'))
    status, out, err = trivium("ask", QUESTION, "--corpus", notes, "--policy", f"{server.url}#m")
    assert status == 2 and not out and "was asked to call a tool and said '<tool_call>" in last(err)
    assert len(server.asked) == 1


@pytest.mark.parametrize("answer", [401, 404])
def test_a_wrong_key_or_model_is_said_as_the_server_says_it(serve, trivium, notes, answer):
    server = serve(lambda body: answer)
    status, _, err = trivium("ask", QUESTION, "--corpus", notes, "--policy", f"{server.url}#m")
    assert status == 2 and f"m at {server.url}" in last(err) and str(answer) in last(err) and "tools" not in last(err)


def test_a_dead_server_is_one_error(trivium, notes):
    status, out, err = trivium("ask", QUESTION, "--corpus", notes, "--policy", "http://127.0.0.1:9/v1#m")
    assert status == 2 and not out and "m at http://127.0.0.1:9/v1: Connection error" in last(err)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--policy", "http://127.0.0.1:9/v1"), "names no model: write URL#MODEL"),
        (("--policy", "u#m", "--model", "folder"), "name one model"),
        (("--model", "nowhere", "--max-tokens", 5), "--max-tokens would change nothing"),
        (("--model", "nowhere", "--price", 1, 1), "--price would change nothing"),
        (("--policy", "u#m", "--max-cost", 1), "--max-cost needs a --price"),
        (("--policy", "u#m", "--price", -1, 1), "must be at least 0"),
        (("--policy", "u#m", "--max-tokens", 0), "must be at least 0 and 1"),
        (("--model", "nowhere"), "no model at 'nowhere'"),
    ],
)
def test_what_cannot_be_meant(trivium, notes, words, says):
    for command in (("ask", QUESTION, "--corpus", notes), ("eval", "search")):
        status, out, err = trivium(*command, *words)
        assert status == 2 and not out and says in last(err)


def test_eval_needs_to_know_in_whose_harness(trivium):
    status, _, err = trivium("eval", "--policy", "u#m")
    assert status == 2 and "name the agent" in last(err)


def test_a_window_of_ones_own_is_for_an_agent_that_has_one(tmp_path):
    assert Outside(policy="u#m", window=12_000).recipe(Search).harness().window.budget == 12_000
    from examples.agent import Staff

    assert Outside(policy="u#m").recipe(Staff) == Staff()
    with pytest.raises(InputError, match="Staff says itself how large its window is"):
        Outside(policy="u#m", window=12_000).recipe(Staff)
