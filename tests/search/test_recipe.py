"""The search recipe: each part that --without leaves out is really gone, and nothing else is."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch

from trivium.agents.search.curriculum import two_phases
from trivium.agents.search.harness import limits_in
from trivium.agents.search.recipe import Search
from trivium.agents.search.reward import SearchReward
from trivium.agents.search.teacher import Imperfection, Teacher
from trivium.assets import NANO, READER
from trivium.errors import InputError
from trivium.eval import evaluate
from trivium.fleet import Rank
from trivium.loops.source import step_tasks
from trivium.policy import Scripted
from trivium.recipe.parts import Parts
from trivium.reward import score

PARTS = get_args(get_type_hints(Search)["without"])


def search(without: str = "nothing", skew: float = 0.5) -> Search:
    return Search(without=without, warmup=64, steps=4, groups=8, eval_tasks=24, skew=skew)


def parts(without: str = "nothing", skew: float = 0.5) -> Parts:
    return Parts(search(without, skew))


@pytest.mark.parametrize("without", PARTS)
def test_only_pruning_takes_a_tool_away(without):
    made = parts(without)
    assert ("prune_chunks" in made.harness.tools) == (without != "pruning")
    assert ("prune_chunks" in made.harness.prompt) == (without != "pruning")


@pytest.mark.parametrize("without", ["nothing", "pruning"])
def test_the_perfect_script_calls_no_tool_that_the_harness_lacks(without):
    made = parts(without)
    tasks = made.heldout_tasks
    episodes = [asyncio.run(made.harness.run(task, made.recipe.expert(tasks))) for task in tasks]
    calls = [call for episode in episodes for call in episode.agent.calls]
    assert any(call.name == "prune_chunks" for call in calls) == (without == "nothing")
    assert not any("no tool" in call.error for call in calls)


def priced(made: Search, **terms) -> SearchReward:
    return SearchReward(window=made.room, **{"effort": 0.06, **terms})


def test_what_a_reward_lacks():
    made = search()
    assert search("nothing").scorer(0) == priced(made, beta=4.0)
    assert search("nothing").scorer(3) == priced(made, beta=2.0)
    assert search("trajectory").scorer(3) == priced(made, beta=2.0, trajectory=0.0)
    assert search("answer").scorer(3) == priced(made, beta=2.0, answer=0.0)
    assert search("penalty").scorer(3) == priced(made, beta=2.0, pruning=0.0)
    assert search("recall").scorer(0) == priced(made, beta=0.5)
    assert search("curriculum").scorer(3) == priced(made, beta=4.0)
    assert search("effort").scorer(3) == priced(made, beta=2.0, effort=0.0)


@pytest.mark.parametrize("field", ["algorithm", "without"])
def test_a_name_that_nothing_has_is_refused(tmp_path, field):
    with pytest.raises(InputError, match=f"--{field} is one of .*, not 'prunning'"):
        replace(Search(out=str(tmp_path / "run")), **{field: "prunning"}).check()


def test_on_real_passages_late_turns_cost_and_the_base_reads():
    made = Search(corpus="somewhere", steps=4)
    assert made.scorer(0) == priced(made, beta=4.0, turns=10, effort=0.0)
    assert [made.scorer(step).beta for step in range(4)] == pytest.approx([4, 4 - 2 / 3, 4 - 4 / 3, 2])
    assert made.scorer(3) == made.judge() == priced(made, beta=2.0, turns=10, effort=0.0)
    assert (made.base(), Search().base(), Search(model="mine").base()) == (str(READER), str(NANO), "mine")
    assert (made.results, Search().results) == (2, 6)


def test_a_run_from_before_results_was_a_field_had_six():
    kept = Search(corpus="somewhere").fields()
    without = {name: value for name, value in kept.items() if name != "results"}
    assert (Search.of(kept, "out").results, Search.of(without, "out").results) == (2, 6)


def test_a_run_from_before_there_were_branches_has_none():
    without = {name: value for name, value in Search().fields().items() if name != "branches"}
    assert (Search().branches, Search.of(without, "out").branches) == (4, 0)


def test_a_branch_alone_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(InputError, match="--branches 1 would have nothing to be compared with"):
        replace(Search(out=str(tmp_path / "run")), branches=1).check()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(InputError, match="--device cuda: torch sees no CUDA device here"):
        replace(Search(out=str(tmp_path / "run")), device="cuda").check()


def test_a_wide_window_has_more_turns_and_prices_them_later():
    made = Search(corpus="somewhere", window=32_768)
    assert limits_in(made.room).turns == made.judge().turns == 64


def test_what_suits_passages_is_the_default_there():
    world, passages = Search(), Search(corpus="somewhere")
    assert (world.warmup, world.lr) == (1600, 4e-4) and (passages.warmup, passages.lr) == (3000, 1.5e-4)
    assert [Search(max_lag=lag).momentum for lag in (0, 1, 4)] == [0.9, 0.9, 0.5]
    assert (world.substeps, Search(max_lag=1).substeps, Search(max_lag=1, substeps=2).substeps) == (2, 1, 2)
    assert (world.sft_steps, world.steps, passages.sft_steps, passages.steps) == (120, 48, 96, 60)
    given = Search(corpus="somewhere", warmup=7, lr=0.1, sft_steps=0, steps=0)
    assert Search.of(given.fields(), given.out) == given and (given.warmup, given.lr) == (7, 0.1)
    assert (given.sft_steps, given.steps) == (0, 0)


@pytest.mark.parametrize("corpus", ["", "somewhere"])
def test_the_rate_rises_in_five_steps_and_falls_to_a_tenth(corpus):
    rates = [Search(corpus=corpus, steps=64).rate(step) for step in range(64)]
    assert rates[0] == pytest.approx(0.2) and max(rates) == rates[4] and rates[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in zip(rates[4:], rates[5:], strict=False))
    assert Search(steps=1).rate(0) == 0.2


def test_one_passage_too_many_teaches_far_less_than_a_missed_answer():
    """Of eight attempts half have one passage too many, or half miss the answer: the second moves five times as much."""
    credit = Search().loss().credit
    extra, missed = (credit(torch.tensor([2.0] * 4 + [2.0 - worse] * 4)).abs().max() for worse in (0.04, 1.0))
    assert missed > 5 * extra


@pytest.fixture
def passages(tmp_path) -> str:
    """Twelve questions about twelve bands, each band's album on a page of its own that names it."""
    pages, questions, judged = [], [], {split: ["query-id\tcorpus-id\tscore"] for split in ("train", "test")}
    for n in range(12):
        band, album = f"Night Mail {n}", f"Tall Oak {n}"
        pages += [(f"b{n}", band, f"{band} was founded by three friends in a cellar beside the old harbour in 19{n:02}.")]
        pages += [(f"a{n}", album, f"{album} is the second album by the band {band} from the port of Varn.")]
        for split, text in (("train", f"Who made Tall Oak {n}?"), ("test", f"Which band is {album} by?")):
            questions.append({"_id": f"{split}{n}", "text": text})
            judged[split] += [f"{split}{n}\ta{n}\t1", f"{split}{n}\tb{n}\t1"]
    (tmp_path / "qrels").mkdir()
    lines = [{"_id": id, "title": title, "text": text} for id, title, text in pages]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in questions))
    for split, lines in judged.items():
        (tmp_path / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return str(tmp_path)


def test_on_passages_the_corpus_asks_every_other_question_of_the_first_half_of_rl(passages):
    asked = Parts(Search(corpus=passages, warmup=1, steps=12, groups=4)).rl_tasks
    assert [task.id.startswith("cloze/") for task in asked[:48]] == [False, True] * 12 + [False] * 24
    people = [task.id for task in (*asked[:24:2], *asked[24:48])]
    assert len(set(people[:18])) == len(set(people[18:])) == 6, "each phase has half of them"
    assert all(len({task.id for task in asked[4 * step :][:4]}) == 4 for step in range(12))


@pytest.mark.parametrize("warmup", [1, 200])
def test_of_few_questions_by_people_none_comes_twice_in_a_step(passages, warmup):
    asked = Parts(Search(corpus=passages, warmup=warmup, steps=6, groups=8)).rl_tasks[:48]
    assert [task.id.startswith("cloze/") for task in asked] == [False, True] * 12 + [False] * 24
    assert all(len(task.truth["gold"]) == 2 for task in asked)
    for step in range(6):
        assert len({task.id for task in asked[8 * step :][:8]}) == 8
    assert len({task.id for task in asked[24:]}) == 12


def test_few_sentences_of_two_hops_do_not_come_twice_in_a_step(passages):
    """The corpus asks on, in other words, but of one sentence at most once in a step."""
    made = Parts(Search(corpus=passages, warmup=200, steps=30, groups=12))
    for step in range(30):
        asked = [task.truth.get("sentence", task.id) for task in made.rl_tasks[12 * step :][:12]]
        assert len(set(asked)) == 12
    corpus = Path(passages) / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("Tall Oak 7 is the second album by the band Night Mail 7", "It is one"))
    assert not any(task.id.startswith("cloze/") for task in Parts(Search(corpus=passages, groups=12, steps=30)).rl_tasks)


def test_a_test_question_that_is_in_train_too_is_refused(passages):
    qrels = Path(passages) / "qrels"
    (qrels / "test.tsv").write_text((qrels / "train.tsv").read_text())
    with pytest.raises(InputError, match="12 test questions in train too, train0 first"):
        Parts(Search(corpus=passages, warmup=200, steps=6, groups=8, workers=1)).check()


def judge_fewer(passages: str, split: str, count: int) -> None:
    """Leave a split so many of its questions, each of two documents."""
    file = Path(passages) / "qrels" / f"{split}.tsv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[: 1 + 2 * count]))


@pytest.mark.parametrize(
    ("count", "groups", "workers"), [(12, 32, 2), (5, 16, 2), (3, 2, 2), (2, 16, 1), (2, 1, 1), (1, 16, 1)]
)
def test_where_questions_are_few_a_step_has_all_of_them(passages, count, groups, workers):
    judge_fewer(passages, "train", count)
    parts = Parts(Search(corpus=passages, warmup=1, steps=3, groups=groups, workers=workers))
    parts.check()
    expected = min(count, groups)
    assert parts.recipe.tasks_per_step == parts.plan(0).groups == expected
    for step in range(3):
        assert len({task.id for task in step_tasks(parts.rl_tasks, expected, Rank(), step)}) == expected


@pytest.mark.parametrize(("split", "purpose"), [("train", "to learn from"), ("test", "held out to be measured on")])
def test_each_worker_needs_a_question(passages, split, purpose):
    judge_fewer(passages, split, 1)
    with pytest.raises(InputError, match=f"--workers 2 needs as many tasks {purpose}, and there are 1"):
        Parts(Search(corpus=passages, warmup=1, steps=2)).check()


def test_a_curriculum_of_too_few_questions_is_refused(passages):
    with pytest.raises(InputError, match=r"--skew 0.75 parts the questions in two phases of at least 12"):
        Parts(Search(corpus=passages, warmup=1, steps=2, skew=0.75)).check()
    Parts(Search(corpus=passages, warmup=1, steps=2, skew=0.75, groups=6)).check()


def test_on_passages_no_steps_are_no_error(passages):
    assert Parts(Search(corpus=passages, warmup=1, steps=0)).rl_tasks is not None


@pytest.mark.parametrize("without", PARTS)
def test_all_are_judged_alike(without):
    assert search(without).judge() == priced(search(), beta=2.0)
    assert [task.id for task in parts(without).heldout_tasks] == [task.id for task in parts().heldout_tasks]


@pytest.mark.parametrize("skew", [0.5, 0.75])
def test_many_hops_come_as_often_as_few_and_with_a_skew_later(skew):
    made = Parts(Search(warmup=64, steps=8, groups=8, skew=skew))
    first, second = two_phases(made.train_tasks, skew, seed=0)
    assert made.rl_tasks == [*first, *second, *second[:8]]
    fewer = sum(task.truth["hops"] for task in second) - sum(task.truth["hops"] for task in first)
    assert fewer > 16 if skew > 0.5 else abs(fewer) <= 16


def test_a_run_from_before_skew_was_a_field_had_few_hops_first():
    kept = {name: value for name, value in Search().fields().items() if name != "skew"}
    assert (Search.of(kept, "out").skew, Search().skew) == (0.75, 0.5)
    assert Search.of(kept | {"without": "curriculum"}, "out").skew == 0.5, "which left out both then"


@pytest.mark.parametrize("skew", [0.2, 1.5, float("nan")])
def test_a_skew_that_is_no_share_is_refused_before_anything_is_made(tmp_path, skew):
    with pytest.raises(InputError, match="--skew is a share from 0.5"):
        replace(Search(out=str(tmp_path / "run")), skew=skew).check()
    assert not (tmp_path / "run").exists()


def test_a_teacher_without_the_tool_never_asks_for_it():
    asked = {without: _asked(parts(without)) for without in ("nothing", "pruning")}
    assert "prune_chunks" in asked["nothing"]
    assert "prune_chunks" not in asked["pruning"]


def test_without_blunders_the_teacher_is_right_in_its_most_likely_action():
    returned = {without: _answers(parts(without)) for without in ("nothing", "blunders")}
    assert returned["nothing"] < 0.4 and returned["blunders"] > 0.4  # (1 - .6)(1 - .7) = .12 and (1 - .3)(1 - .35) = .46


def test_pruning_pays_for_the_perfect_script():
    """The recipe's promise to RL: with three hops and more there is something to learn about pruning."""
    whole, bare = parts(), parts("pruning")
    whole.train_tasks = bare.train_tasks = [task for task in whole.train_tasks if task.truth["hops"] >= 3]
    assert _mean_reward(whole, prune=1.0) > _mean_reward(bare, prune=0.0) + 0.2


def test_with_lora_only_adapters_learn_and_all_ranks_begin_with_the_same():
    pytest.importorskip("peft", reason="LoRA needs peft: pip install peft")
    made = Parts(Search(lora=2))
    one, other = made.network().own_state(), made.network().own_state()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    learning = {name for name, p in made.network().model.named_parameters() if p.requires_grad}
    assert learning == {name for name in one if ".lora_" in name}
    assert not Parts(Search()).network().adapted


def _asked(made: Parts) -> set[str]:
    long = [task for task in made.train_tasks if task.truth["hops"] >= 3][:16]
    episodes = [asyncio.run(made.harness.run(task, made.teacher)) for task in long]
    return {call.name for episode in episodes for call in episode.agent.calls}


def _answers(made: Parts) -> float:
    """The share of the teacher's episodes of two hops that end in the gold documents and nothing else."""
    two = [task for task in made.train_tasks if task.truth["hops"] == 2]
    episodes = [asyncio.run(made.harness.run(task, made.teacher, sample=n)) for task in two for n in range(4)]
    found = asyncio.run(score(episodes, made.recipe.judge()))
    return sum(each["f1"] == 1.0 for each in found) / len(found)


def _mean_reward(made: Parts, prune: float) -> float:
    perfect = Teacher(replace(Imperfection.none(), prune=prune))
    policy = Scripted(perfect.script(made.train_tasks), made.renderer)
    result, _ = asyncio.run(evaluate(made.harness, made.train_tasks, policy, made.recipe.judge()))
    return result.means()["reward"]


def test_other_data_under_the_same_name_is_told(tmp_path):
    network = Parts(Search()).network()
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text("".join(f'{{"_id": "d{n}", "title": "T{n}", "text": "a text"}}\n' for n in range(4)))
    (tmp_path / "queries.jsonl").write_text("".join(f'{{"_id": "q{n}", "text": "what is {n}?"}}\n' for n in range(4)))

    def judged(train: str, test: str) -> dict[str, str]:
        for split, text in (("train", train), ("test", test)):
            (tmp_path / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + text)
        return Parts(Search(corpus=str(tmp_path))).inputs(network)

    first = judged("q0\td0\t1\nq1\td1\t1\n", "q2\td2\t1\n")
    assert judged("q0\td0\t1\nq1\td1\t1\n", "q2\td2\t1\n") == first
    other = judged("q0\td0\t1\nq1\td1\t1\n", "q2\td3\t1\n")
    assert other["questions"] != first["questions"] and other["documents"] == first["documents"]
    (tmp_path / "corpus.jsonl").write_text((tmp_path / "corpus.jsonl").read_text().replace("a text", "the text"))
    assert Parts(Search(corpus=str(tmp_path))).inputs(network)["documents"] != first["documents"]
