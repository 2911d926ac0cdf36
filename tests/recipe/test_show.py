"""`trivium show` on real stores: which episodes are shown, in which order, and what stands beside them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.laws import walks
from tests.trace.test_store import listing, locked, shelf  # noqa: F401  (fixtures)
from trivium.harness import Harness, Window, prune_chunks
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.trace import Episode, Score, Store, Task

REWARDS = {"a": 0.4, "b": 0.9, "c": 0.1, "d": 0.7}


def episode(renderer, id: str, task: Task, answer: str = "#2", searches: int = 1) -> Episode:
    harness = Harness([walks.search_corpus, prune_chunks], Window(4000), "Search.", specs=False)
    script = [*[call(walks.search())] * searches, say(answer)]
    return replace(asyncio.run(harness.run(task, Scripted(script, renderer, "agent"))), id=id)


def task(name: str) -> Task:
    return Task(
        name, f"What of {name}?", {"gold": ["doc1", "doc11"], "answer": f"thing {name}", "hops": "abcd".index(name) + 1}
    )


def fill(folder: Path, renderer) -> Path:
    """A run that trains: four held-out tasks by RL, one of them by the base and after the warm-up."""
    (folder / "recipe.json").write_text('{"corpus": ""}')  # a field of the search agent's alone
    store = Store(folder / "episodes.db")
    for name, reward in REWARDS.items():
        store.write([episode(renderer, f"eval/rl/{name}/0", task(name))], scores(f"eval/rl/{name}/0", reward))
    for policy, answer in (("base", "#1"), ("sft", "#3")):
        store.write([episode(renderer, f"eval/{policy}/b/0", task("b"), answer)], scores(f"eval/{policy}/b/0", 0.3))
    store.close()
    return folder


def scores(id: str, reward: float) -> list[Score]:
    return [Score(id, "reward", reward, "test"), Score(id, "f1", reward / 2, "test")]


@pytest.fixture
def run(tmp_path, renderer) -> Path:
    return fill(tmp_path, renderer)


@pytest.fixture
def show(trivium):
    """`trivium show` in this process: status, output, error."""
    return partial(trivium, "show", width=100)


def ids(out: str) -> str:
    """The tasks of the episodes in their order, by the titles of their frames."""
    return "".join(line.split("/")[2] for line in out.splitlines() if line.startswith("╭─ eval/rl/"))


@pytest.mark.parametrize(
    ("words", "order"),
    [
        ([], "abc"),
        (["--count", "9"], "abcd"),
        (["--best"], "bda"),
        (["--worst", "--count", "2"], "ca"),
        (["--where", "reward<0.8", "--best"], "dac"),
        (["--where", "reward<0.8", "hops>1"], "cd"),
        (["--where", "f1=0.35"], "d"),
        (["--where", "answer=thing c", "--policy", "rl"], "c"),
        (["--policy", "rl", "--task", "d"], "d"),
        (["--episode", "eval/rl/", "--worst", "--count", "1"], "c"),
    ],
    ids=str,
)
def test_episodes_are_chosen_by_any_number_or_label(run, show, words, order):
    code, out, err = show(run, *words)
    assert code == 0 and ids(out) == order, err or out


def test_episodes_without_a_reward_are_neither_best_nor_worst(run, show, renderer):
    store = Store(run / "episodes.db")
    store.write([episode(renderer, "eval/rl/a/1", task("a"))], [Score("eval/rl/a/1", "reward", float("nan"), "test")])
    store.write([episode(renderer, "eval/rl/a/2", task("a"))])
    store.close()
    for order in ("--best", "--worst"):
        assert len(ids(show(run, order, "--count", "9")[1])) == 4
    code, _, err = show(run, "--episode", "eval/rl/a/2", "--best")
    assert code == 2 and "there is no episode with a reward" in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--best", "--worst"], "--best and --worst are two orders"),
        (["--count", "0"], "--count must be at least 1"),
        (["--where", "f1<0.1", "reward>0.8"], "there is no episode f1<0.1 and reward>0.8"),
        (["--where", "f2<0.1"], "no episode has a f2; there are answer, calls, deployment, errors, f1, hops"),
        (["--where", "low"], "'low' is no condition"),
        (["--task", "x"], "no held-out episode of the task 'x'; the first are called a, b, c"),
        (["--policy", "sft", "--task", "a"], "no such episode of the task 'a'; the first are called a, b, c"),
        (["--policy", "expert", "--task", "a"], "no such episode of the task 'a'"),
        (["--task", "a", "--worst"], "--task alone shows one episode of each policy"),
        (["--policy", "expert"], "there are --policy base, sft, rl"),
    ],
    ids=str,
)
def test_what_is_not_there_is_said_in_one_line(run, show, words, why):
    code, out, err = show(run, *words)
    assert code == 2 and why in err and err.count("\n") == 1 and not out, err


def test_a_task_stands_side_by_side_as_each_policy_did_it(run, show):
    code, out, err = show(run, "--task", "b", width=160)
    assert code == 0, err
    (top,) = [line for line in out.splitlines() if line.startswith("╭")]
    assert [name in top for name in ("─ base ─", "─ SFT ─", "─ RL ─")] == [True] * 3
    assert "agent answers: #1" in out and "agent answers: #2" in out and "agent answers: #3" in out
    narrow = show(run, "--task", "b", width=80)[1]
    assert sum(line.startswith("╭") for line in narrow.splitlines()) == 3
    assert max(map(len, narrow.splitlines())) <= 80
    one = show(run, "--task", "c", width=160)[1]
    assert "─ RL ─" in one and "base" not in one


def test_a_store_of_ones_own_shows_a_task_too(run, show):
    code, out, err = show(run / "episodes.db", "--task", "b", width=160)
    assert code == 0 and "eval/base/b/0" in out and "eval/rl/b/0" in out, err


def test_gold_that_was_never_seen_is_shown_as_another_episode_saw_it(run, show, renderer):
    unseen = show(run, "--policy", "rl", "--task", "d")[1]
    assert "★ doc1  returned" in unseen and "★ doc11  never seen" in unseen and "fact number 11" not in unseen
    store = Store(run / "episodes.db")
    store.write([episode(renderer, "eval/expert/d/0", task("d"), searches=3)])
    store.close()
    lines = show(run, "--policy", "rl", "--task", "d")[1].splitlines()
    at = next(n for n, line in enumerate(lines) if "★ doc11  never seen" in line)
    assert "Doc 11: fact number 11 about thing 2." in lines[at + 1]


def test_gold_that_nobody_saw_is_shown_as_the_agents_documents_have_it(run, show):
    (run / "corpus").mkdir()
    documents = [{"_id": "doc11", "title": "Eleven", "text": "It is the last."}]
    (run / "corpus" / "corpus.jsonl").write_text("".join(json.dumps(each) + "\n" for each in documents))
    (run / "recipe.json").write_text(json.dumps({"corpus": str(run / "corpus")}))
    assert "Eleven: It is the last." in show(run, "--policy", "rl", "--task", "d")[1]
    (run / "corpus" / "corpus.jsonl").unlink()
    code, out, err = show(run, "--policy", "rl", "--task", "d")
    assert code == 0 and "★ doc11  never seen" in out, err


def test_signs_and_the_best_reward_are_explained(run, show):
    out = show(run, "--count", "1")[1]
    assert "truth: thing a" in out and "agent answers: #2" in out and "reward 0.4 of 2" in out
    assert out.rstrip().endswith("★ gold: a document that the task asks for, or a passage of it; the best reward there is: 2")


def test_a_run_where_nobody_may_write_is_shown_and_left_as_it_was(shelf, show, renderer):  # noqa: F811
    fill(shelf, renderer)
    before = listing(shelf)
    show(shelf, "--count", "1")  # first, for what is imported then may be compiled
    with locked(shelf):
        code, out, err = show(shelf, "--worst", "--count", "1")
    assert code == 0 and ids(out) == "c", err
    assert listing(shelf) == before
