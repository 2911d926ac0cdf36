"""The orchestrator's recipe: its tasks, harness, teacher and reward, by scripts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from trivium.agents.swarm.recipe import Swarm
from trivium.agents.swarm.teacher import Habits, Teacher
from trivium.corpus import Document
from trivium.errors import InputError
from trivium.eval import Gate, Result
from trivium.harness import Harness
from trivium.loops.run import read_json
from trivium.nn import Network
from trivium.policy import Scripted
from trivium.policy.scripted import call, say
from trivium.recipe.line import train
from trivium.reward import Parl, annealed, score
from trivium.tasks.proof import mentions
from trivium.trace import Episode, Store, Task, rows

SWARM = Swarm(out="unused", warmup=2, groups=2, eval_tasks=48, steps=4)
TASKS = SWARM.tasks("heldout")


def knowing(recipe: Swarm, tasks: list[Task]) -> Harness:
    """The recipe's harness, its sub-agents a script that finds what it is asked, so that no model speaks."""
    cells = {link["question"]: link for task in tasks for link in task.truth["links"]}

    def find(view):
        asked = next(message["content"] for message in view.messages if message["role"] == "user").partition(" ")[2]
        shown = "".join(str(message["content"]) for message in view.messages if message["role"] == "tool")
        if not shown:
            return call(("search_corpus", {"query": f"{cells[asked]['subject']} {cells[asked]['keyword']}"}))
        lines = [line for line in shown.split("\n") if mentions(line, cells[asked]["object"])]
        return say(lines[0].rpartition(" ")[2] if lines else "none")

    vars(recipe)["helper"] = Scripted(find, recipe.renderer, "helper")
    return recipe.harness()


def attempts(script, tasks: list[Task], recipe: Swarm = SWARM) -> list[Episode]:
    harness, policy = knowing(recipe, tasks), Scripted(script, recipe.renderer, "agent")

    async def all_of_them() -> list[Episode]:
        return list(await asyncio.gather(*(harness.run(task, policy) for task in tasks)))

    return asyncio.run(all_of_them())


def judged(episodes: list[Episode], scorer=None) -> list[dict[str, float]]:
    return asyncio.run(score(episodes, scorer or SWARM.judge()))


def mean(rows: list[dict[str, float]], name: str) -> float:
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values)


def test_tables_are_of_their_world_and_no_prompt_says_how():
    assert [task.truth["kind"] for task in TASKS] == ["wide", "simple"] * 24
    assert len({task.id for task in TASKS}) == len({task.prompt for task in TASKS}) == 48
    world = {world.name: {document.id: document for document in world.documents} for world in SWARM.worlds}
    for task in TASKS:
        assert not {"parallel", "split", "agent", "same time", "delegate"} & set(task.prompt.lower().split())
        assert [task.truth["rows"][key][at] for key, at in task.truth["cells"].values()] == [
            link["object"] for link in task.truth["links"]
        ]
        for link in task.truth["links"]:
            document: Document = world[task.id.partition("/")[0]][link["doc"]]
            assert mentions(f"{document.title}: {document.text}", link["subject"]) and mentions(document.text, link["object"])
            assert not mentions(task.prompt, link["object"])


def test_rl_attempts_other_tables_than_the_lessons():
    lessons, attempted = ({task.prompt for task in tasks} for tasks in (SWARM.lesson_tasks(), SWARM.rl_tasks()))
    assert len(lessons) == SWARM.warmup and len(attempted) == SWARM.groups * SWARM.steps and not lessons & attempted


def test_within_the_steps_nobody_fills_a_wide_table_alone_and_a_team_does():
    alone = judged(attempts(Teacher(Habits.alone(0.0)).script(TASKS), TASKS))
    team = judged(attempts(Teacher(Habits.perfect()).script(TASKS), TASKS))
    assert mean(team, "wide/item_f1") > 0.9 > 0.85 > mean(alone, "wide/item_f1")
    assert mean(alone, "simple/item_f1") == mean(team, "simple/item_f1") > 0.85
    assert mean(team, "wide/steps") == mean(alone, "wide/steps") == 4
    assert (mean(team, "wide/split"), mean(team, "simple/split")) == (1, 0)
    Gate(("tables",), score=SWARM.live_score).check("tables", Result.of("team", TASKS, [[row] for row in team]))


def test_the_teacher_is_wrong_on_purpose():
    episodes = attempts(Teacher(Habits()).script(TASKS), TASKS)
    rows = judged(episodes)
    assert 0.3 < mean(rows, "wide/split") < 0.7 and 0.1 < mean(rows, "simple/split") < 0.45
    assert mean(rows, "wide/item_f1") < 0.85 and mean(rows, "finished") == 1
    assert not any(made.error for episode in episodes for made in episode.agent.calls)


def test_passages_that_are_cited_fill_the_cells_that_they_state():
    (episode,) = attempts(Teacher(Habits.perfect()).script(TASKS), TASKS[:1])
    truth, agent = TASKS[0].truth, episode.agent
    cells, handles = len(truth["cells"]), agent.answer.split()

    def scored(answer: str) -> dict[str, float]:
        agent.answer = answer
        return judged([episode])[0]

    assert len(handles) == cells and scored(" ".join(handles))["success"] == 1
    assert scored(" ".join([*handles, handles[0]]))["success"] == 1, "what is cited twice is said once"
    assert scored(" ".join(handles[1:]))["item_f1"] == pytest.approx(2 * (cells - 1) / (2 * cells - 1))
    assert scored(" ".join([*handles, "#99"]))["item_f1"] == pytest.approx(2 * cells / (2 * cells + 1)), "nobody showed it"
    assert scored("\n".join(f"{number} | {handle}" for number, handle in enumerate(handles, 1)))["success"] == 1
    assert scored("\n".join(f"{number} | {handle}" for number, handle in enumerate(handles[::-1], 1)))["success"] == 0


def test_what_was_truly_done_is_no_call_that_returned():
    wide = next(task for task in TASKS if task.truth["kind"] == "wide")
    first, second, *_ = (f"1 {link['question']}" for link in wide.truth["links"])
    assign = [("assign_task", {"agent": "a", "prompt": prompt}) for prompt in (first, first, second)]
    turns = [call(("create_subagent", {"name": "a", "system_prompt": ""}), *assign), say("")]
    (episode,) = attempts(lambda view: turns[sum(m["role"] == "assistant" for m in view.messages)], [wide])
    (scores,) = judged([episode], SWARM.scorer(0))
    assert (scores["assignments"], scores["parallelism"], scores["r_parallel"]) == (3, 3, 3 / 6)
    assert scores["r_finish"] == pytest.approx(2 / 3), "the second asked what the first had found"
    assert scores["reward"] == pytest.approx(SWARM.parallel * 3 / 6 + SWARM.finish * 2 / 3 + scores["r_perf"])


def test_a_table_in_fewer_steps_is_worth_more_and_one_that_is_not_there_nothing():
    task = next(task for task in TASKS if task.truth["kind"] == "simple")
    answer = "\n".join(f"{number} | {link['object']}" for number, link in enumerate(task.truth["links"], 1))
    search = call(("search_corpus", {"query": "x"}))

    def after(searches: int) -> dict[str, float]:
        turns = [*[search] * searches, say(answer)]
        return judged(attempts(lambda view: turns[sum(m["role"] == "assistant" for m in view.messages)], [task]))[0]

    quick, slow, late = after(1), after(3), after(4)
    assert quick["item_f1"] == slow["item_f1"] == 1 and quick["reward"] - slow["reward"] == pytest.approx(SWARM.price * 2 / 4)
    assert (quick["r_parallel"], quick["r_finish"]) == (0, 1), "who assigns nothing leaves nothing undone"
    assert (late["reward"], late["item_f1"], late["finished"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("without", "lambdas"),
    [
        ("nothing", [(0.3, 0.3), (0.15, 0.15), (0, 0), (0, 0)]),
        ("parallel", [(0, 0.3), (0, 0.15), (0, 0), (0, 0)]),
        ("finish", [(0.3, 0), (0.15, 0), (0, 0), (0, 0)]),
        ("anneal", [(0.3, 0.3)] * 4),
        ("swarm", [(0, 0)] * 4),
    ],
)
def test_both_lambdas_fall_to_zero_and_one_part_can_be_left_out(without, lambdas):
    recipe = replace(SWARM, without=without, anneal=0.5)
    scorers: list[Parl] = [recipe.scorer(step) for step in range(4)]
    assert [s.parallel for s in scorers] == pytest.approx([parallel for parallel, _ in lambdas], abs=1e-6)
    assert [s.finish for s in scorers] == pytest.approx([finish for _, finish in lambdas], abs=1e-6)
    assert (recipe.judge().parallel, recipe.judge().finish) == (0, 0)
    assert ("assign_task" in recipe.harness().tools) == (without != "swarm")


def test_the_anneal_ends_where_it_says():
    assert [annealed(1.0, step, 10, 0.3) for step in (0, 1, 3, 9)] == pytest.approx([1, 2 / 3, 0, 0])


def test_kimis_objective_is_the_default():
    assert SWARM.loss().name == "kimi"


@pytest.mark.slow
def test_a_whole_run_moves_the_orchestrators_weights_and_no_sub_agents(tmp_path):
    """Law 5 through a real run: both speak in it, each with an engine of its own, and one of them learns."""
    recipe = Swarm(
        out=str(tmp_path / "run"), warmup=8, sft_steps=2, steps=1, groups=2, size=2, eval_tasks=2, workers=1, anneal=1.0
    )
    frozen = recipe.helper.digest()
    run = train(recipe)
    assert Network.load(run.folder / "model").digest() != Network.load(recipe.base()).digest() == frozen
    assert recipe.helper.digest() == frozen == read_json(run.folder / "inputs.json")["subagents"]
    store = Store(run.folder / "episodes.db")
    episodes = [*store.select(prefix="teacher/"), *store.select(prefix="rl/")]
    spoken = {thread.policy for episode in episodes for thread in episode.threads}
    assert {"teacher", "helper", "agent"} <= spoken
    helped = [row for episode in episodes for row in rows(episode, {"teacher", "agent"})]
    assert {row.thread for row in helped} == {"0"}, "of a sub-agent there is no row to learn from"


def test_the_sub_agents_engine_remembers_nothing_from_one_step_to_the_next():
    """Law 11: a run that is gone on with has an engine that never spoke."""
    recipe, task = replace(SWARM, out="elsewhere"), TASKS[1]
    harness, teacher = recipe.harness(), Scripted(Teacher(Habits(split_simple=1.0)).script([task]), recipe.renderer, "agent")
    episode = asyncio.run(harness.run(task, teacher))
    helped = next(thread for thread in episode.threads if thread.policy == "helper")
    assert helped.turns and recipe.helper.cache.computed > 0
    assert recipe.helper.cache.prefix(list(helped.segments[0].tokens)) == 0


@pytest.mark.parametrize("without", ["swarm", "parallel", "finish", "anneal"])
def test_an_option_that_would_change_nothing_is_refused(without, tmp_path):
    option = {"swarm": "subagents"}.get(without, without)
    recipe = replace(
        SWARM, out=str(tmp_path), without=without, warmup=16, **{option: "elsewhere" if without == "swarm" else 0.7}
    )
    with pytest.raises(InputError, match=f"--{option} would change nothing"):
        recipe.check()


def test_sub_agents_that_are_nowhere_are_named_before_anything_begins(tmp_path):
    with pytest.raises(InputError, match="--subagents /nowhere is no folder of a model"):
        replace(SWARM, out=str(tmp_path / "run"), warmup=16, subagents="/nowhere").check()
    assert not (tmp_path / "run").exists()
