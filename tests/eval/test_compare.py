"""How a claim is made: every policy on the same tasks, measured once, kept beside the run, paired and pooled."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from trivium.agents.coder.recipe import Coder
from trivium.agents.search import comparison as comparing
from trivium.agents.search import harness as harnesses
from trivium.agents.search.baselines import Ranked
from trivium.agents.search.comparison import AGENTS, RANKED, SearchSuite, _plain, rollouts
from trivium.agents.search.recipe import Search
from trivium.agents.search.tables import tables as more
from trivium.assets import NANO
from trivium.corpus import HashEmbedder
from trivium.errors import InputError, PolicyError
from trivium.recipe import memory
from trivium.recipe.compare import _sorted, compare, histories
from trivium.recipe.comparison import Speaker
from trivium.recipe.measured import Attempt, Measured, _attempt
from trivium.recipe.report import as_json, markdown, tables
from trivium.trace import Store, Task

SUITE = SearchSuite(tasks=4)
WHOLE = SearchSuite(tasks=4, rollouts=2, no_prune=True)
RL = Speaker("rl", "rl")


class Quiet:
    """A Watcher who says nothing."""

    def stage(self, name: str, total: int, done: int = 0) -> None: ...

    def advance(self, n: int = 1, **numbers: float) -> None: ...


def quiet():
    return nullcontext(Quiet())


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr(comparing, "open_embedder", lambda name: HashEmbedder())


def run(folder: Path, **fields) -> Path:
    """A finished run that trained nothing: its weights are the base's, after the warm-up and after RL."""
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(replace(Search(), **fields).fields()))
    (folder / "summary.json").write_text("{}")
    for name in ("model", "model-sft"):
        shutil.copytree(NANO, folder / name)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[str]:
    """Two seeds of a recipe, and one of another."""
    home = tmp_path_factory.mktemp("runs")
    made = [run(home / "a0", seed=0), run(home / "a1", seed=1), run(home / "b1", seed=1, without="penalty")]
    return [str(folder) for folder in made]


@pytest.fixture(scope="module")
def said(runs) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "open_embedder", lambda name: HashEmbedder())
        return compare(runs, WHOLE, workers=1, watch=quiet)


def test_runs_of_a_recipe_are_pooled_and_another_recipe_stands_apart(said):
    first, second = said["recipes"]
    assert (first["label"], first["seeds"], first["tasks"]) == ("A", [0, 1], 8)
    assert (second["label"], second["seeds"], second["tasks"]) == ("B (without penalty)", [1], 4)
    names = {speaker.name for speaker in Search().comparison().speakers(WHOLE)}
    assert first["policies"].keys() == names == {"base", "base_greedy", "sft", "sft_greedy", "rl", "rl_greedy"} | {
        "rl_no_prune", "rl_greedy_no_prune", "expert",
    }  # fmt: skip


def test_equal_weights_differ_by_nothing(said):
    """The same weights, seed and streams: every difference of RL and warm-up is nil, in every seed."""
    paired = said["recipes"][0]["paired"]
    for pair in ("rl minus sft", "rl_greedy minus sft_greedy"):
        assert paired[pair]["f1"] == {"all": [0.0] * 3, "by_run": [[0.0] * 3] * 2, "sd": 0.0}
    assert said["recipes"][0]["gains"]["rl_greedy over sft_greedy"]["output_recall"][0] == 1.0
    assert {"rl minus base", "rl_greedy minus base_greedy"} <= paired.keys()
    assert said["between"]["B (without penalty) minus A"]["seeds"] == [1]
    assert said["between"]["B (without penalty) minus A"]["rl_greedy"]["f1"]["all"] == [0.0] * 3


def test_the_perfect_script_is_the_ceiling_and_means_are_of_the_tasks(said):
    first = said["recipes"][0]
    assert first["policies"]["expert"]["f1"][0] > 0.9
    scores = [score for part in first["per_task"] for score in part["rl"]["f1"]]
    assert len(scores) == 8 and first["policies"]["rl"]["f1"][0] == pytest.approx(sum(scores) / 8, abs=1e-3)


def test_plain_search_returns_as_many_documents_as_the_agent(said):
    for part in said["recipes"][0]["per_task"]:
        for agent in AGENTS:
            assert part[f"hybrid@{agent}"]["returned"] == [max(1.0, count) for count in part[agent]["returned"]]


def test_rollouts_cost_what_they_all_cost(said):
    found = said["recipes"][0]["rollouts"]
    assert found["rl_fused"]["spent"][0] == pytest.approx(2 * found["rl_each"]["spent"][0])
    assert found["rl_fused"]["returned"][0] == pytest.approx(found["rl_each"]["returned"][0], abs=0.51)


def test_uncut_rollouts_hold_all_that_any_of_them_returned():
    task = Task(id="t", prompt="?", truth={"gold": ["a", "c"], "answer": "c"})
    scores = dict.fromkeys((*RANKED, "returned", "spent", "searches"), 1.0)
    known = {("t", n): Attempt(scores, [Ranked("a", False), Ranked(doc, doc == "c")]) for n, doc in enumerate("bc")}
    made = rollouts([task], Speaker("rl", "rl", attempts=2), known)
    told = {name: dict(made[f"rl_{name}"].scores) for name in ("fused", "uncut")}
    assert [told[name]["returned"] for name in ("fused", "uncut")] == [[2.0], [3.0]]
    assert told["uncut"]["output_recall"] == told["uncut"]["answer_found"] == [1.0]
    assert told["uncut"]["spent"] == told["fused"]["spent"] == [2.0]


def test_effort_is_told_by_hops(said):
    hops = said["recipes"][0]["hops"]["expert"]
    assert sum(each["tasks"] for each in hops.values()) == 8
    assert hops["1"]["searches"][0] == 1.0


def test_how_training_went_is_told_of_all_runs_together(tmp_path):
    folders = [run(tmp_path / f"s{seed}", seed=seed) for seed in (0, 1)]
    for at, folder in enumerate(folders):
        told = [{"clipped": n + at, "entropy": float("nan"), "cpu_seconds": 450.0 * (1 + at)} for n in range(16)]
        lines = [{"kind": "rl", "step": n + 1, "metrics": metrics} for n, metrics in enumerate(told)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = compare([str(folder) for folder in folders], SUITE, workers=1, watch=quiet)
    assert said["recipes"][0]["training"] == {"clipped": {"first": 1.0, "last": 15.0, "mean": 8.0, "most": 16.0}}
    assert said["recipes"][0]["cpu_hours"] == {"rl": 3.0}
    assert next(table for table in tables(said, more) if table.title == "A: training").note.endswith("CPU hours a run: RL 3.")


def test_tables_and_json_hold_it(said):
    numbers = {"command": "trivium eval", "commit": "abc", "versions": {}, "suite": str(WHOLE), **said}
    page = markdown(numbers, more)
    titles = [table.title for table in tables(numbers, more)]
    assert all(f"## {title}" in page for title in titles) and "B (without penalty) minus A" in titles
    assert {len(row) for table in tables(numbers, more) for row in table.rows if len(row) != len(table.header)} == set()
    assert json.loads(as_json(numbers))["recipes"][0]["seeds"] == [0, 1] and "NaN" not in as_json(numbers)


def test_nothing_is_attempted_twice(said, runs, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("it was measured before")

    monkeypatch.setattr(memory, "fitting_engine", refuse)
    monkeypatch.setattr(comparing, "plain_rankings", refuse)
    assert as_json(compare(runs, WHOLE, 1, quiet)) == as_json(said)
    fewer = compare(runs[:1], SearchSuite(tasks=2), 1, quiet)
    assert fewer["recipes"][0]["per_task"][0]["rl"]["f1"] == said["recipes"][0]["per_task"][0]["rl"]["f1"][:2]


def test_questions_of_so_many_hops_alone(tmp_path):
    folder = str(run(tmp_path / "r"))
    every, deep = Measured(folder, SearchSuite(tasks=32)).tasks, Measured(folder, SearchSuite(tasks=7, hops=4)).tasks
    assert [task.id for task in deep] == [task.id for task in every if task.truth["hops"] == 4][:7] and len(deep) == 7
    with pytest.raises(InputError, match="no task to be measured on: .* of 9 hops"):
        assert Measured(folder, SearchSuite(tasks=2, hops=9)).tasks


def test_runs_of_two_agents_are_no_comparison():
    two = [
        SimpleNamespace(recipe=recipe, run=SimpleNamespace(folder=name)) for name, recipe in (("a", Search()), ("b", Coder()))
    ]
    for runs in (two, two[::-1]):
        with pytest.raises(InputError, match="are runs of different agents"):
            _sorted(runs)


def test_runs_that_share_their_warm_ups_with_others_are_pooled(tmp_path):
    """Each begins at a folder of its own, and they are of one recipe; where the seeds are not the same they are not."""
    whole = [run(tmp_path / f"whole-{seed}", seed=seed) for seed in (0, 1)]
    warm = {"sft_steps": 0, "without": "answer"}
    arms = [run(tmp_path / f"arm-{seed}", seed=seed, model=str(whole[seed] / "model-sft"), **warm) for seed in (0, 1)]
    crossed = run(tmp_path / "crossed", seed=1, model=str(whole[0] / "model-sft"), **warm)
    sides = histories([str(folder) for folder in (*whole, *arms)], SUITE)
    assert [len(runs) for runs in sides.values()] == [2, 2]
    assert list(sides)[1] == f"B (model {whole[0] / 'model-sft'}, sft_steps 0, without answer)"
    assert [len(runs) for runs in histories([str(arms[1]), str(crossed)], SUITE).values()] == [1, 1]


def test_runs_that_begin_at_one_warm_up_are_pooled(tmp_path):
    warm = str(run(tmp_path / "whole", seed=0) / "model-sft")
    arms = [run(tmp_path / f"arm-{seed}", seed=seed, model=warm, sft_steps=0) for seed in (0, 1, 2)]
    assert [len(runs) for runs in histories([str(folder) for folder in arms], SUITE).values()] == [3]


def test_a_run_without_the_tool_is_not_measured_with_its_prunes_refused(tmp_path):
    folders = [run(tmp_path / "whole"), run(tmp_path / "bare", without="pruning")]
    said = compare([str(folder) for folder in folders], replace(SUITE, no_prune=True), workers=1, watch=quiet)
    assert ["rl_no_prune" in side["policies"] for side in said["recipes"]] == [True, False]


def test_a_stopped_measurement_goes_on_where_it_was(tmp_path):
    made = Measured(str(run(tmp_path / "r")), SUITE)
    every = made.missing(RL)
    assert [sample for _, sample in every] == [0] * 4
    _attempt(made, RL, every[:3], lambda n: None)
    assert made.missing(RL) == every[3:]


def test_an_engine_that_breaks_on_the_way_leaves_no_zeros(tmp_path, monkeypatch):
    """What came whole is kept, and the rest is to be asked for again."""
    made = Measured(str(run(tmp_path / "r")), SUITE)
    policy, times = made.policy(RL), iter(range(99))
    speak = policy.speak

    async def breaks(view, sampling):
        if next(times) == 1:
            raise PolicyError("the engine broke")
        return await speak(view, sampling)

    monkeypatch.setattr(policy, "speak", breaks)
    monkeypatch.setattr(Measured, "policy", lambda *_: policy)
    with pytest.raises(PolicyError, match="in 1 of 4 attempts: the engine broke"):
        _attempt(made, RL, made.missing(RL), lambda n: None)
    (again,) = made.missing(RL)
    _attempt(made, RL, [again], lambda n: None)
    assert not made.missing(RL)


def test_there_must_be_a_tool_to_refuse(tmp_path):
    folder = run(tmp_path / "bare", without="pruning")
    with pytest.raises(InputError, match="nothing that --no-prune could refuse"):
        compare([str(folder)], replace(SUITE, no_prune=True), workers=1, watch=quiet)


def asked(folder: Path, question: str, gold: str, answer: str) -> SearchSuite:
    """A data set of one question over three pages."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    pages = [
        ("d0", "Alba", "Alba lies on the river Ruhn."),
        ("d1", "Bern", "Bern was founded by a baker."),
        ("d2", "Cork", "Nine."),
    ]
    lines = [json.dumps({"_id": id, "title": title, "text": text}) for id, title, text in pages]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "0", "text": question, "metadata": {"answer": answer}}))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n0\t{gold}\t1\n")
    return SearchSuite(corpus=str(folder))


def test_a_question_of_the_same_id_or_a_corrected_one_is_another(tmp_path, monkeypatch):
    monkeypatch.setattr(harnesses, "open_embedder", lambda *_, **__: HashEmbedder())
    folder = str(run(tmp_path / "r"))
    for question, gold, answer, first in (
        ("Who founded Bern?", "d1", "a baker", "d1"),
        ("On which river lies Alba?", "d0", "Ruhn", "d0"),
        ("On which river lies Alba?", "d2", "Ruhn", "d0"),
    ):
        made = Measured(folder, asked(tmp_path / "data", question, gold, answer))
        assert made.missing(RL) == [("0", 0)]
        _attempt(made, RL, made.missing(RL), lambda n: None)
        assert made.missing(RL) == [] and _plain(made, lambda n: None)["0"]["bm25"][0].doc == first


def test_two_questions_of_one_id_are_refused(tmp_path):
    suite = asked(tmp_path / "data", "Who founded Bern?", "d1", "a baker")
    shutil.copy(tmp_path / "data" / "qrels" / "test.tsv", tmp_path / "data" / "qrels" / "train.tsv")
    with pytest.raises(InputError, match="share their id with another, 0 first"):
        assert Measured(str(run(tmp_path / "r")), replace(suite, split="train+test")).tasks


def test_other_weights_and_another_harness_are_another_measurement(tmp_path):
    made = Measured(str(run(tmp_path / "r")), SUITE)
    before = made.prefix(RL)
    everybody = made.comparison.speakers(WHOLE)
    assert len({made.prefix(speaker) for speaker in everybody}) == len(everybody)
    bare = Measured(str(run(tmp_path / "b", without="pruning")), SUITE)
    assert bare.prefix(RL) != before
    bare.harness(RL).ending = None
    assert bare.prefix(RL) != Measured(str(tmp_path / "b"), SUITE).prefix(RL), "where an answer ends is the harness's, too"
    (tmp_path / "r" / "model" / "model.safetensors").write_bytes(b"others")
    assert made.prefix(RL) != before


def test_what_the_run_measured_itself_counts_if_it_covers_all_tasks(tmp_path):
    folder = run(tmp_path / "r")
    made = Measured(str(folder), SUITE)
    _attempt(made, RL, made.missing(RL), lambda n: None)
    store = Store(folder / "compare.db")
    episodes = list(store.select())
    store.close()
    (folder / "compare.db").unlink()
    own = Store(folder / "episodes.db")
    for episode in episodes:
        episode.id = f"eval/rl/{episode.task.id}/0"
    own.write(episodes[:3])
    assert len(made.missing(RL)) == 4, "three of four tasks are not all"
    own.write(episodes)
    own.close()
    assert made.missing(RL) == []
    assert len(Measured(str(folder), SearchSuite(tasks=5)).missing(RL)) == 5
    (folder / "recipe.json").write_text(json.dumps(Search(without="pruning").fields()))
    assert len(Measured(str(folder), SUITE).missing(RL)) == 4, "made in another harness: its prompt is another"
    (folder / "recipe.json").write_text(json.dumps(Search().fields()))
    assert Measured(str(folder), SUITE).missing(RL) == []
    episodes[0].agent.answer = "#1 #2 #1"
    (folder / "episodes.db").unlink()
    own = Store(folder / "episodes.db")
    own.write(episodes)
    own.close()
    assert len(Measured(str(folder), SUITE).missing(RL)) == 4, "heard beyond where an answer ends now"


def test_documents_that_changed_since_a_run_was_begun_are_told(tmp_path, monkeypatch):
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    (data / "corpus.jsonl").write_text('{"_id": "d1", "title": "Tall Oak", "text": "Tall Oak is an album."}')
    (data / "queries.jsonl").write_text('{"_id": "q1", "text": "What is Tall Oak?"}')
    (data / "qrels" / "test.tsv").write_text("q1\td1\t1\n")
    monkeypatch.setattr(harnesses, "open_embedder", lambda name, progress=None: HashEmbedder())
    real = run(tmp_path / "real", corpus=str(data))
    (real / "inputs.json").write_text('{"documents": "of then"}')
    with pytest.raises(InputError, match="real was begun with other documents than .*data has now"):
        compare([str(real)], SUITE, 1, quiet)
    assert not (real / "compare.db").exists()


def test_what_cannot_be_compared_is_refused(tmp_path, runs):
    twin, far = run(tmp_path / "twin"), run(tmp_path / "far", seed=7, without="answer")
    with pytest.raises(InputError, match="another run of seed 0"):
        compare([runs[0], str(twin)], SUITE, 1, quiet)
    with pytest.raises(InputError, match="share no seed"):
        compare([runs[0], str(far)], SUITE, 1, quiet)
    real = run(tmp_path / "real", corpus="nowhere/hotpotqa")
    with pytest.raises(
        InputError, match=r"a0 \(generated worlds\) and .*real \(nowhere/hotpotqa\) have no questions in common"
    ):
        compare([runs[0], str(real)], SUITE, 1, quiet)
    shutil.rmtree(twin / "model-sft")
    with pytest.raises(InputError, match="keeps no model-sft"):
        compare([str(twin)], SUITE, 1, quiet)
    assert not (twin / "compare.db").exists(), "it is told before anything is attempted"


def test_a_finished_run_outlives_the_model_that_it_began_with(tmp_path):
    """Its own weights are compared, and the base has no column."""
    for name in ("a-folder-that-was-moved", "runs/whole/model-sft"):
        moved = run(tmp_path / f"of-{Path(name).name}", model=str(tmp_path / name), sft_steps=0)
        numbers = compare([str(moved)], SUITE, 1, quiet)["recipes"][0]
        assert numbers["policies"].keys() == {"sft", "sft_greedy", "rl", "rl_greedy", "expert"}
        assert numbers["paired"].keys() == {"rl minus sft", "rl_greedy minus sft_greedy"}


def test_what_is_written_holds_no_scores_of_single_tasks(said):
    assert "per_task" in said["recipes"][0] and "per_task" not in as_json(said)
